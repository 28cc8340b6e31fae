"""The DeepSeek-V4.1 text backbone and its DSpark drafter, for training.

Parameter names are those of the checkpoint, except that the routed experts of a layer are stacked (w1, w3 [E, I, H], w2 [E, H, I])
and the shared expert is s1, s2, s3; export.py splits and renames.  Attention over compressed rows is dense with a mask;
`sparse=True` adds the indexer's selection, `index_loss=True` the KL that trains the indexers (the selection has no gradient).
"""

import json
import math
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import ops
from ops import Ops, Precision

GROUP = 32  # rows of an expert come in multiples of this


@dataclass
class Config:
    """The fields of config.json's text_config that shape the network, and two of its rope_scaling."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: list
    kv_source_layer_ids: list
    index_source_layer_ids: list
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: list
    engram_vocab_size: int
    engram_max_ngram_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: list
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    yarn_factor: float = 16.0
    yarn_original: int = 65536

    @classmethod
    def load(cls, path):
        with open(path) as file:
            text = json.load(file)["text_config"]
        names = {f.name for f in fields(cls)} - {"yarn_factor", "yarn_original"}
        scaling = text["rope_scaling"]
        return cls(
            **{k: text[k] for k in names},
            yarn_factor=scaling["factor"],
            yarn_original=scaling["original_max_position_embeddings"],
        )


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return Ops.rms_norm(x, self.weight, self.eps)


class Linear(nn.Module):
    """A float32 master weight used at the compute precision.  `fp8` says that the checkpoint stores it as FP8; with `quantise` set
    training sees it as it will be stored."""

    def __init__(self, inputs, outputs, fp8=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5 * 0.5)
        self.fp8, self.quantise = fp8, False

    def matrix(self):
        w = ops.fake_fp8_weight(self.weight) if self.quantise and self.fp8 else self.weight
        return w.to(Precision.compute)

    def forward(self, x):
        return F.linear(x, self.matrix())


# ---- engram --------------------------------------------------------------------------------------------------------------


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def engram_layout(config, compressed_vocab):
    """Per engram layer: primes [ngram - 1][heads], distinct over all layers, and multipliers [ngram]."""
    seen, primes = set(), []
    for _ in config.engram_layer_ids:
        rows = []
        for _ in range(config.engram_max_ngram_size - 1):
            candidate, row = config.engram_vocab_size - 1, []
            for _ in range(config.engram_n_heads):
                candidate += 1
                while not is_prime(candidate) or candidate in seen:
                    candidate += 1
                seen.add(candidate)
                row.append(candidate)
            rows.append(row)
        primes.append(rows)
    bound = max(1, (np.iinfo(np.int64).max // compressed_vocab) // 2)
    multipliers = [
        (
            np.random.default_rng(10007 * layer).integers(0, bound, size=config.engram_max_ngram_size, dtype=np.int64)
            * 2
            + 1
        ).tolist()
        for layer in config.engram_layer_ids
    ]
    return primes, multipliers


class Engram(nn.Module):
    """Adds rows of a big table, chosen by a hash of the last tokens and gated by the streams."""

    def __init__(self, config, primes, multipliers):
        super().__init__()
        self.config = config
        sizes = [p for row in primes for p in row]
        self.register_buffer("primes", torch.tensor(primes), persistent=False)
        self.register_buffer("multipliers", torch.tensor(multipliers), persistent=False)
        self.register_buffer("offsets", torch.tensor(np.cumsum([0] + sizes[:-1])), persistent=False)
        self.embed = nn.Embedding(sum(sizes), config.engram_head_dim)
        nn.init.normal_(self.embed.weight, std=0.5)
        self.wkv = Linear(len(sizes) * config.engram_head_dim, config.hidden_size * (config.hc_mult + 1))
        self.q_weight = nn.Parameter(torch.ones(config.hc_mult, config.hidden_size))
        self.k_weight = nn.Parameter(torch.ones(config.hc_mult, config.hidden_size))
        self.quantise = False

    def rows(self, history):
        """history [..., ngram]: compressed ids, newest first -> table rows [..., (ngram - 1) * heads]."""
        product = history * self.multipliers
        h, out = product[..., 0], []
        for i in range(1, self.config.engram_max_ngram_size):
            h = h ^ product[..., i]
            out.append(h.unsqueeze(-1) % self.primes[i - 1])
        return torch.cat(out, -1) + self.offsets

    def forward(self, X, history):
        c, H = self.config, self.config.hidden_size
        e = self.embed(self.rows(history))
        e = ops.fake_fp8(e) if self.quantise else e
        kv = self.wkv(e.flatten(-2).to(Precision.compute)).float()
        key, value = kv[..., :-H].unflatten(-1, (c.hc_mult, H)), kv[..., -H:]
        h = X.float()
        scale = (
            torch.rsqrt(h.square().mean(-1) + c.rms_norm_eps)
            * torch.rsqrt(key.square().mean(-1) + c.rms_norm_eps)
            * H**-0.5
        )
        d = (h * (self.q_weight * self.k_weight) * key).sum(-1) * scale
        # The slope of the root is without bound at 0, where a rounding error would decide the gradient; it is taken a little aside.
        smooth = (d.abs() + 0.01).sqrt()
        root = d.abs().clamp_min(1e-6).sqrt().detach() + (smooth - smooth.detach())
        gate = torch.sigmoid(torch.copysign(root, d))
        return (h + gate.unsqueeze(-1) * value.unsqueeze(-2)).to(X.dtype)


# ---- attention --------------------------------------------------------------------------------------------------------------


class Indexer(nn.Module):
    def __init__(self, config, owns_keys):
        super().__init__()
        self.wq_b = Linear(config.q_lora_rank, config.index_n_heads * config.index_head_dim)
        self.weights_proj = Linear(config.hidden_size, config.index_n_heads, fp8=False)
        if owns_keys:
            self.wk = Linear(config.head_dim, config.index_head_dim, fp8=False)
            self.k_norm = Norm(config.index_head_dim, config.rms_norm_eps)


class Compressor(nn.Module):
    def __init__(self, config, ratio):
        super().__init__()
        self.wkv = Linear(config.hidden_size, config.head_dim, fp8=False)
        if ratio > 1:
            self.wgate = Linear(config.hidden_size, config.head_dim, fp8=False)
        self.norm = Norm(config.head_dim, config.rms_norm_eps)


class Attention(nn.Module):
    """ratio 0 = window only; else also compressed rows, owned by this layer or by the nearest kv source below."""

    def __init__(self, config, layer, ratio):
        super().__init__()
        self.config, self.layer, self.ratio = config, layer, ratio
        c, heads, D = config, config.num_attention_heads, config.head_dim
        self.wq_a, self.q_norm = Linear(c.hidden_size, c.q_lora_rank), Norm(c.q_lora_rank, c.rms_norm_eps)
        self.wq_b = Linear(c.q_lora_rank, heads * D)
        self.wkv, self.kv_norm = Linear(c.hidden_size, D), Norm(D, c.rms_norm_eps)
        self.wo_a = Linear(heads * D // c.o_groups, c.o_groups * c.o_lora_rank)
        self.wo_b = Linear(c.o_groups * c.o_lora_rank, c.hidden_size)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.owns_keys = ratio > 0 and layer in c.kv_source_layer_ids
        if self.owns_keys:
            self.compressor = Compressor(c, ratio)
        if ratio > 0 and layer in c.index_source_layer_ids:
            self.indexer = Indexer(c, self.owns_keys)

    def output(self, o, cos, sin):
        c = self.config
        o = Ops.rope(o, cos, sin, True).flatten(-2).unflatten(-1, (c.o_groups, -1))
        w = self.wo_a.matrix().view(c.o_groups, c.o_lora_rank, -1)
        return self.wo_b(torch.cat([F.linear(o[..., g, :], w[g]) for g in range(c.o_groups)], -1))

    def forward(self, x, run, shared):
        """shared: what the layers of one group hand upwards (compressed rows, index keys, selection)."""
        c, T = self.config, x.shape[1]
        cos, sin = run.rope[1 if self.ratio else 0]
        qr = self.q_norm(self.wq_a(x))
        q = (
            Ops.rope(self.wq_b(qr).unflatten(-1, (c.num_attention_heads, c.head_dim)), cos[:, None], sin[:, None])
            * c.head_dim**-0.5
        )
        kv = Ops.fake_fp8(Ops.rope(self.kv_norm(self.wkv(x)), cos, sin))
        if self.ratio:
            if self.owns_keys:
                self.compress(x, run, shared, T)
            if hasattr(self, "indexer") and (run.sparse or run.index_loss):
                self.index(x, qr, run, shared, T)
        o, mass = Ops.attend(
            q,
            kv,
            shared.get("rows") if self.ratio else None,
            self.ratio,
            run.layout,
            shared.get("selected") if self.ratio else None,
            self.attn_sink,
            bool(self.ratio) and run.index_loss,
        )
        if mass is not None:
            shared["mass"] = shared["mass"] + mass  # all heads, all layers that use one selection
        return self.output(o, cos[:, None], sin[:, None])

    def compress(self, x, run, shared, T):
        r, m = self.ratio, self.compressor
        cos, sin = run.rope[1]
        if r == 1:
            latent = m.norm(m.wkv(x))
        else:
            a, g = m.wkv(x).float().unflatten(1, (-1, r)), m.wgate(x).float().unflatten(1, (-1, r))
            latent = m.norm((a * g.softmax(2)).sum(2).to(x.dtype))
        shared["rows"] = Ops.fake_fp4(Ops.rope(latent, cos[::r], sin[::r]), 16, True)
        shared.pop("selected", None)
        if run.sparse or run.index_loss:
            k = self.indexer.k_norm(self.indexer.wk(latent.detach()))
            shared["index_keys"] = Ops.fake_fp4(Ops.rope(k, cos[::r], sin[::r]), 32, False)

    def index(self, x, qr, run, shared, T):
        """Scores of all visible rows; their loss is taken when the next source comes, their selection holds until then."""
        c, ix = self.config, self.indexer
        cos, sin = run.rope[1]
        q = ix.wq_b(qr.detach()).unflatten(-1, (c.index_n_heads, c.index_head_dim))
        q = Ops.fake_fp4(Ops.rope(q, cos[:, None], sin[:, None]), 32, False)
        weight = ix.weights_proj(x.detach()).float() * c.index_n_heads**-0.5
        keys = shared["index_keys"]
        score = (q.reshape(len(x), -1, c.index_head_dim) @ keys.mT).float().view(len(x), T, c.index_n_heads, -1)
        score = (score.relu() * weight.unsqueeze(-1)).sum(2) * c.index_head_dim**-0.5
        visible = run.layout.compressed_mask(self.ratio)
        score = score.masked_fill(~visible, ops.NEG)
        if run.index_loss:
            run.close_index(shared)
            shared.update(score=score, visible=visible, mass=0.0)
        if run.sparse:
            self.select(score.detach(), visible, shared)

    def select(self, score, visible, shared):
        """Ties: the lower index first, as the engine does."""
        c, (T, G) = self.config, score.shape[1:]
        if self.layer == c.candidate_source_layer_id:
            size = c.candidate_block_size
            best = F.pad(score, (0, -G % size), value=ops.NEG).unflatten(-1, (-1, size)).amax(-1)
            at = torch.arange(T, device=score.device)
            best[:, at, at // size] = -ops.NEG  # the newest block always stays
            value, block = best.sort(dim=-1, descending=True, stable=True)
            n = min(c.candidate_topk_blocks, best.shape[-1])
            keep = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, block[..., :n], value[..., :n] > ops.NEG / 10)
            shared["candidates"] = keep.repeat_interleave(size, -1)[..., :G]
        elif self.layer > c.candidate_source_layer_id >= 0 and "candidates" in shared:
            score = score.masked_fill(~shared["candidates"], ops.NEG)
        top = score.sort(dim=-1, descending=True, stable=True).indices[..., : min(c.index_topk, G)]
        shared["selected"] = torch.zeros_like(visible).scatter_(-1, top, True)


# ---- mixture of experts ------------------------------------------------------------------------------------------------------------


class Gate(nn.Module):
    def __init__(self, config, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, config.hidden_size) * config.hidden_size**-0.5)
        self.register_buffer("bias", torch.zeros(experts))


class GroupedLinear(torch.autograd.Function):
    """Rows sorted by expert times the matrix of their expert: [R, I] x [E, O, I] -> [R, O]; sizes = rows of each expert."""

    @staticmethod
    def forward(ctx, rows, weights, sizes):
        ctx.save_for_backward(rows, weights)
        ctx.sizes = sizes
        out = rows.new_empty(len(rows), weights.shape[1])
        for w, a, o in zip(weights, rows.split(sizes), out.split(sizes)):
            torch.mm(a, w.t(), out=o)
        return out

    @staticmethod
    def backward(ctx, g):
        rows, weights = ctx.saved_tensors
        g = g.contiguous()
        grows, gweights = torch.empty_like(rows), torch.empty_like(weights)
        for w, a, b, ga, gw in zip(
            weights, rows.split(ctx.sizes), g.split(ctx.sizes), grows.split(ctx.sizes), gweights
        ):
            torch.mm(b, w, out=ga)
            torch.mm(b.t(), a, out=gw)
        return grows, gweights, None


def grouped_padded(rows, weights, sizes):
    """The same as GroupedLinear with few launches, for accelerators: every expert's rows padded to the longest."""
    longest, device = max(sizes), rows.device
    count = torch.tensor(sizes, device=device)
    expert = torch.repeat_interleave(torch.arange(len(sizes), device=device), count, output_size=len(rows))
    slot = (
        torch.arange(len(rows), device=device)
        + (longest * torch.arange(len(sizes), device=device) - count.cumsum(0) + count)[expert]
    )
    padded = rows.new_zeros(len(sizes) * longest, rows.shape[1]).index_copy(0, slot, rows)
    out = padded.view(len(sizes), longest, -1) @ weights.mT
    return out.flatten(0, 1).index_select(0, slot)


def grouped(rows, weights, sizes):
    return grouped_padded(rows, weights, sizes) if rows.is_cuda else GroupedLinear.apply(rows, weights, sizes)


def padded_groups(token, weight, count):
    """Rows sorted by expert, with rows of weight 0 added so that every expert's number is a multiple of GROUP; returns token, weight and
    the numbers. Products of a shape met before reuse the library's generated code; a new shape costs more than its product."""
    padded = (count + GROUP - 1) // GROUP * GROUP
    shift = (padded - count).cumsum(0) - (padded - count)
    slot = torch.arange(len(token), device=token.device) + torch.repeat_interleave(shift, count, output_size=len(token))
    sizes = padded.tolist()
    token = token.new_zeros(sum(sizes)).index_copy(0, slot, token)
    return token, weight.new_zeros(sum(sizes)).index_copy(0, slot, weight), sizes


class MoE(nn.Module):
    def __init__(self, config, experts, chosen):
        super().__init__()
        self.config, self.experts, self.chosen = config, experts, chosen
        H, width = config.hidden_size, config.moe_intermediate_size
        self.gate = Gate(config, experts)
        self.w1, self.w3 = (nn.Parameter(torch.randn(experts, width, H) * H**-0.5) for _ in "13")
        self.w2 = nn.Parameter(torch.randn(experts, H, width) * width**-0.5 * 0.3)
        self.s1, self.s3, self.s2 = Linear(H, width), Linear(H, width), Linear(width, H)
        self.quantise, self.counts = False, []  # counts: rows per expert of each forward pass since balance()

    def forward(self, x):
        c = self.config
        f = x.reshape(-1, x.shape[-1])
        score = F.softplus(F.linear(f.float(), self.gate.weight)).sqrt()
        chosen = (score.detach() + self.gate.bias).topk(self.chosen, -1).indices
        weight = score.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        order = chosen.flatten().argsort(stable=True)
        count = torch.bincount(chosen.flatten(), minlength=self.experts)
        if self.training:
            self.counts.append(count)
        token, weight, sizes = padded_groups(order // self.chosen, weight.flatten()[order], count)
        q = (lambda w: ops.fake_fp4(w, 32)) if self.quantise else (lambda w: w)
        w1, w3, w2 = (q(w).to(Precision.compute) for w in (self.w1, self.w3, self.w2))
        gate_up = grouped(f.index_select(0, token), torch.cat([w1, w3], 1), sizes)
        h = Ops.swiglu(*gate_up.chunk(2, -1), weight.unsqueeze(-1), c.swiglu_limit)
        routed = grouped(h, w2, sizes)
        y = self.s2(Ops.swiglu(self.s1(f), self.s3(f), None, c.swiglu_limit)).float()
        return y.index_add(0, token, routed.float()).to(x.dtype).view_as(x)


class Block(nn.Module):
    def __init__(self, config, layer, ratio, experts, chosen, engram=None):
        super().__init__()
        self.config = c = config
        self.attn, self.ffn = Attention(c, layer, ratio), MoE(c, experts, chosen)
        self.attn_norm, self.ffn_norm = Norm(c.hidden_size, c.rms_norm_eps), Norm(c.hidden_size, c.rms_norm_eps)
        n = c.hc_mult
        for site in ("attn", "ffn"):
            base = torch.zeros((2 + n) * n)
            base[:n] = -1.1  # pre about 1 / 4
            base[2 * n :] = (torch.eye(n) * 4).flatten()  # comb near the identity
            setattr(self, f"hc_{site}_fn", nn.Parameter(torch.randn((2 + n) * n, n * c.hidden_size) * 0.002))
            setattr(self, f"hc_{site}_base", nn.Parameter(base))
            setattr(self, f"hc_{site}_scale", nn.Parameter(torch.ones(3)))
        self.engram = engram

    def enter(self, X, pre, site, norm):
        c = self.config
        fn, base, scale = (getattr(self, f"hc_{site}_{part}") for part in ("fn", "base", "scale"))
        return Ops.hc_site(X, pre, fn, base, scale, norm.weight, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps)

    def forward(self, X, pre, attention):
        """attention: normed input -> output.  Returns the streams and the pre of the next block."""
        x, pre, post, comb = self.enter(X, pre, "attn", self.attn_norm)
        X = Ops.hc_expand(attention(x), X, post, comb)
        x, pre, post, comb = self.enter(X, pre, "ffn", self.ffn_norm)
        return Ops.hc_expand(self.ffn(x), X, post, comb), pre


class Run:
    """What one forward pass carries along."""

    def __init__(self, rope, layout, history, sparse, index_loss, want_features):
        self.rope, self.layout, self.history = rope, layout, history
        self.sparse, self.index_loss, self.index_losses = sparse, index_loss, []
        self.features = [] if want_features else None

    def close_index(self, shared):
        """KL between the attention mass that was collected and the scores it belongs to."""
        if "score" in shared and isinstance(shared["mass"], torch.Tensor):
            mass, visible = shared["mass"], shared["visible"]
            total = mass.sum(-1, keepdim=True)
            target = mass / total.clamp_min(1e-9)
            logp = torch.log_softmax(shared["score"], -1).masked_fill(~visible, 0)
            kl = (target * (target.clamp_min(1e-9).log() - logp)).sum(-1)
            use = (total[..., 0] > 1e-6) & (visible.sum(-1) > 1)
            self.index_losses.append((kl * use).sum() / use.sum().clamp_min(1))
        shared.pop("score", None)


class Backbone(nn.Module):
    def __init__(self, config, token_map):
        super().__init__()
        self.config = c = config
        self.register_buffer("token_map", torch.tensor(token_map), persistent=False)
        self.embed, self.head = (
            nn.Embedding(c.vocab_size, c.hidden_size),
            Linear(c.hidden_size, c.vocab_size, fp8=False),
        )
        nn.init.normal_(self.embed.weight, std=1.0)
        primes, multipliers = engram_layout(c, max(token_map) + 1)
        engrams = {layer: Engram(c, primes[k], multipliers[k]) for k, layer in enumerate(c.engram_layer_ids)}
        self.layers = nn.ModuleList(
            Block(c, layer, c.compress_ratios[layer], c.n_routed_experts, c.num_experts_per_tok, engrams.get(layer))
            for layer in range(c.num_hidden_layers)
        )
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        self._rope = {}

    def rope_tables(self, length, device):
        if (length, device) not in self._rope:
            self._rope[length, device] = [
                tuple(t.to(device) for t in ops.rope_tables(self.config, length, far)) for far in (False, True)
            ]
        return self._rope[length, device]

    def history(self, ids, start):
        """[B, T, ngram] compressed ids, newest first; what lies before the document counts as padding."""
        T = ids.shape[1]
        compressed, pad = self.token_map[ids], self.token_map[self.config.engram_pad_token_id]
        pos = torch.arange(T, device=ids.device)
        back = [
            torch.where(pos - i < start, pad, F.pad(compressed, (i, 0))[:, :T])
            for i in range(1, self.config.engram_max_ngram_size)
        ]
        return torch.stack([compressed] + back, -1)

    def forward(self, ids, start, sparse=False, index_loss=False, want_features=False):
        """ids, start [B, T] (ops.Layout) -> (hidden before the head [B, T, H], run)."""
        c = self.config
        run = Run(
            self.rope_tables(ids.shape[1], ids.device),
            ops.Layout(start, c.sliding_window, set(c.compress_ratios) - {0}),
            self.history(ids, start),
            sparse,
            index_loss,
            want_features,
        )
        X = self.embed(ids).to(Precision.compute).unsqueeze(-2).expand(*ids.shape, c.hc_mult, c.hidden_size)
        pre = torch.zeros(*ids.shape, c.hc_mult, device=ids.device)
        pre[..., 0] = 1
        shared = {}
        for layer, block in enumerate(self.layers):
            if block.engram is not None:
                X = block.engram(X, run.history)
            if want_features and layer in c.dspark_target_layer_ids:
                run.features.append(X.float().mean(-2))
            X, pre = block(X, pre, lambda x: block.attn(x, run, shared))
        if index_loss:
            run.close_index(shared)
        return self.norm(ops.hc_collapse(X, pre)), run

    @torch.no_grad()
    def balance(self, rate):
        """Moves the router's biases towards equal load; call once per step."""
        for block in self.layers:
            if block.ffn.counts:
                load = torch.stack(block.ffn.counts).sum(0).float()
                block.ffn.gate.bias += rate * torch.sign(load.mean() - load)
                block.ffn.counts.clear()


def set_quantised(module, on):
    """Trains against the weights as the checkpoint will store them."""
    for part in module.modules():
        if hasattr(part, "quantise"):
            part.quantise = on


# ---- drafter -----------------------------------------------------------------------------------------------------------------------


class Drafter(nn.Module):
    """DSpark: a block of guesses in one pass over the backbone's features, then a cheap chain that looks at the previous guess."""

    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.stages = nn.ModuleList(
            Block(c, -1, 0, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok)
            for _ in range(c.num_nextn_predict_layers)
        )
        self.main_proj = Linear(len(c.dspark_target_layer_ids) * c.hidden_size, c.hidden_size)
        self.main_norm, self.norm = Norm(c.hidden_size, c.rms_norm_eps), Norm(c.hidden_size, c.rms_norm_eps)
        self.markov_embed = nn.Embedding(c.vocab_size, c.dspark_markov_rank)
        self.markov_head = Linear(c.dspark_markov_rank, c.vocab_size, fp8=False)
        nn.init.normal_(self.markov_embed.weight, std=0.3)
        self.confidence = Linear(c.hidden_size + c.dspark_markov_rank, 1, fp8=False)

    def forward(self, backbone, features, ids, start, row, last):
        """Anchors: row [n], last [n] = position of the last verified token; the block begins at last + 1 with the known token there.
        Returns logits without the Markov part [n, block, V] and hidden [n, block, H]."""
        c, W, n, size = self.config, self.config.sliding_window, len(last), self.config.dspark_block_size
        T = ids.shape[1]
        cos, sin = backbone.rope_tables(T + size, ids.device)[0]
        x = self.main_norm(self.main_proj(torch.cat(features, -1).to(Precision.compute)))
        block = torch.full((n, size), c.dspark_noise_token_id, device=ids.device)
        block[:, 0] = ids[row, last + 1]
        pos = (last + 1)[:, None] + torch.arange(size, device=ids.device)
        near = last[:, None] - torch.arange(W, device=ids.device)
        seen = (near >= 0) & (near >= start[row, last][:, None])
        near = near.clamp_min(0)
        X = backbone.embed(block).to(Precision.compute).unsqueeze(-2).expand(n, size, c.hc_mult, c.hidden_size)
        pre = torch.zeros(n, size, c.hc_mult, device=ids.device)
        pre[..., 0] = 1
        mask = torch.cat([seen, torch.ones(n, size, dtype=torch.bool, device=ids.device)], 1)[:, None, None]

        def attention(a, y):
            context = ops.fake_fp8(ops.rope(a.kv_norm(a.wkv(x)), cos[:T], sin[:T]))[row[:, None], near]  # [n, W, D]
            q = ops.rope(
                a.wq_b(a.q_norm(a.wq_a(y))).unflatten(-1, (c.num_attention_heads, c.head_dim)),
                cos[pos][:, :, None],
                sin[pos][:, :, None],
            )
            keys = torch.cat([context, ops.fake_fp8(ops.rope(a.kv_norm(a.wkv(y)), cos[pos], sin[pos]))], 1)
            logits = torch.einsum("nthd,nkd->nthk", q, keys).float() * c.head_dim**-0.5
            sink = a.attn_sink.view(1, 1, -1, 1).expand(n, size, -1, 1)
            p = torch.cat([logits.masked_fill(~mask, ops.NEG), sink], -1).softmax(-1)[..., :-1]
            return a.output(
                torch.einsum("nthk,nkd->nthd", p.to(y.dtype), keys), cos[pos][:, :, None], sin[pos][:, :, None]
            )

        for stage in self.stages:
            X, pre = stage(X, pre, lambda y: attention(stage.attn, y))
        h = ops.hc_collapse(X, pre)
        return backbone.head(self.norm(h)).float(), h

    def guess(self, logits, hidden, i, previous):
        """Logits of the i-th guess after the token before it, and the logit of its confidence."""
        e = self.markov_embed(previous)
        confidence = self.confidence(torch.cat([hidden[:, i], e.to(hidden.dtype)], -1)).float()[..., 0]
        return logits[:, i] + self.markov_head(e.to(hidden.dtype)).float(), confidence
