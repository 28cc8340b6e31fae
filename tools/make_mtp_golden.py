#!/usr/bin/env python3
"""Makes tests/data/v4_mtp.safetensors, the golden of the first V4 release's MTP layer (spec model 9.8).

    tools/make_mtp_golden.py REFERENCE CHECKPOINT OUT

REFERENCE is the folder with refmodel.py, the reference model that made tests/golden; CHECKPOINT is tests/golden/v4. The
layer's block, hc_head and last norm are those of that checkpoint's draft stages; what an MTP layer has besides (enorm,
hnorm, e_proj, h_proj) is random and goes into OUT, with prompt ids and the logits of every position, float32 without
fake quantisation. The formula agrees with the MTP block of nemo-automodel 0.7.0, read and not run; that the embedding
term is zero at position 0 rests on the specification alone.
"""
import sys

import torch
from safetensors.torch import save_file

reference, checkpoint, out = sys.argv[1:]
sys.path.insert(0, reference)
import refmodel  # noqa: E402
from refmodel import Opt, Ref, State, collapse, hc_head_mix, mm  # noqa: E402

TOKENS = 60


class MtpRef(Ref):
    def mtp(self, streams, next_ids):
        """Logits [T, V] of positions 0 ... T-1; streams [T, n, H] are the backbone's last, next_ids[p] stands at p + 1."""
        w, p = self.w, torch.arange(len(next_ids))
        h = self.lin(self.norm(streams.flatten(0, 1), "mtp.0.hnorm"), "mtp.0.h_proj").unflatten(0, streams.shape[:2])
        e = self.lin(self.norm(w["embed.weight"][next_ids], "mtp.0.enorm"), "mtp.0.e_proj")
        x = self.R(h + e.masked_fill((p == 0)[:, None], 0)[:, None])
        visible = (p[None] <= p[:, None]) & (p[None] > p[:, None] - self.W)

        def attention(rows):
            _, q, kv = self.qkv("mtp.0.attn", rows, p, self.f_main)
            return self.out("mtp.0.attn", self.attend(q, kv, visible, w["mtp.0.attn.attn_sink"]), p, self.f_main)

        def experts(rows):
            no_image = torch.zeros(len(p), dtype=torch.bool)
            return self.ffn("mtp.0.ffn", rows, next_ids, no_image, self.c["num_experts_per_tok"], lambda *a: None, "m0")

        x, _ = self.layer(x, None, "mtp.0", attention, experts, lambda *a: None, "m0")
        pre = hc_head_mix(x, w["mtp.0.hc_head_fn"], w["mtp.0.hc_head_base"], w["mtp.0.hc_head_scale"], self.eps,
                          self.c["hc_eps"])
        return mm(self.norm(self.R(collapse(x, pre)), "mtp.0.norm"), w["head.weight"])


torch.set_num_threads(1)
ref = MtpRef(checkpoint, Opt(bf16=False, kvq=False, actq=False))
for name in ("norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"):
    ref.w["mtp.0." + name] = ref.w["mtp.1." + name]
ref.n_stage = 0  # no DSpark features
hidden = ref.c["hidden_size"]
random = torch.Generator().manual_seed(20260423)
tensors = {}
for name in ("enorm", "hnorm"):
    weight = (1 + 0.1 * torch.randn(hidden, generator=random)).to(torch.bfloat16)
    tensors[f"mtp.0.{name}.weight"] = weight
    ref.w[f"mtp.0.{name}.weight"] = weight.float()
for name in ("e_proj", "h_proj"):
    codes = (16 * torch.randn(hidden, hidden, generator=random)).to(torch.float8_e4m3fn)
    scale = torch.full((1, 1), 127 - 7, dtype=torch.uint8)  # 2^-7: rows of norm about 1
    tensors[f"mtp.0.{name}.weight"] = codes
    tensors[f"mtp.0.{name}.scale"] = scale.view(torch.float8_e8m0fnu)
    ref.w[f"mtp.0.{name}.weight"] = codes.float() * 2.0 ** -7
ids = torch.randint(0, 250, (TOKENS,), generator=random)
last = {}
ref.forward(State(TOKENS), ids, rec=lambda layer, what, value: last.update({(layer, what): value}))
streams = last[(ref.L - 1, "streams")]
tensors["ids"] = ids.to(torch.int32)
tensors["logits"] = ref.mtp(streams[:-1], ids[1:])
save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out)
