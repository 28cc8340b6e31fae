"""Building blocks of the V4.1 network for training: quantisers with straight-through gradients, norms, rotary positions,
hyper-connection mixing, soft-max attention with a sink.

These are the plain versions, correct on any device.  fused.use() replaces the hot ones by the C++ operators of fused.cc for
float32 training on a CPU (test_model.py compares the two), use_compiled() by compiled ones on an accelerator.
"""

import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F

NEG = -1e30


class Precision:
    """The type of activations: bfloat16 on an accelerator, float32 on a CPU.  Weights stay float32."""

    compute = torch.float32


# ---- number formats -----------------------------------------------------------------------------------------------------


def pow2_ceil(t):
    """Smallest power of two >= t, for positive normal float32."""
    bits = t.contiguous().view(torch.int32)
    return torch.exp2(((bits >> 23) & 0xFF).float() - 127 + ((bits & 0x7FFFFF) != 0).float())


def straight_through(x, q):
    return x + (q.to(x.dtype) - x).detach()


def round_e2m1(q):
    """Nearest of 0 .5 1 1.5 2 3 4 6 (ties to the even code), |q| <= 6."""
    a = q.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign(torch.round(a / step) * step, q)


def fake_fp8(x, block=32):
    """E4M3 with a power-of-two scale per block of the last axis."""
    with torch.no_grad():
        b = x.detach().float().unflatten(-1, (-1, block))
        s = pow2_ceil(b.abs().amax(-1, True).clamp_min(1e-4) * (1 / 448))
        q = ((b / s).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s).flatten(-2)
    return straight_through(x, q)


def fake_fp4(x, block=32, e4m3_scale=False):
    """E2M1 with a power-of-two or an E4M3 scale per block of the last axis."""
    with torch.no_grad():
        b = x.detach().float().unflatten(-1, (-1, block))
        top = b.abs().amax(-1, True)
        if e4m3_scale:
            s = (top.clamp_min(6 * 2.0**-9) / 6).to(torch.float8_e4m3fn).float()
        else:
            s = pow2_ceil(top.clamp_min(6 * 2.0**-126) * (1 / 6))
        q = (round_e2m1((b / s).clamp(-6, 6)) * s).flatten(-2)
    return straight_through(x, q)


def fake_fp8_weight(w, block=32):
    """E4M3 with a power-of-two scale per block x block tile."""
    with torch.no_grad():
        o, i = w.shape
        rows, cols = -(-o // block), -(-i // block)
        b = F.pad(w, (0, cols * block - i, 0, rows * block - o)).view(rows, block, cols, block)
        s = pow2_ceil(b.abs().amax((1, 3), True).clamp_min(1e-12) * (1 / 448))
        q = ((b / s).to(torch.float8_e4m3fn).float() * s).reshape(rows * block, -1)[:o, :i]
    return straight_through(w, q)


# ---- norm, rotation, activation --------------------------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rope_tables(config, length, compressed):
    """cos, sin [length, channels / 2]; compressed = the YaRN-scaled frequencies of layers with compressed keys."""
    n = config.qk_rope_head_dim // 2
    i = torch.arange(n, dtype=torch.float64)
    if not compressed:
        freq = config.rope_theta ** (-i / n)
    else:
        base, dim = config.compress_rope_theta, config.qk_rope_head_dim
        edge = lambda turns: dim * math.log(config.yarn_original / (2 * math.pi * turns)) / (2 * math.log(base))
        low, high = max(math.floor(edge(32)), 0), min(math.ceil(edge(1)), dim - 1)
        ramp = ((i - low) / max(high - low, 1e-3)).clamp(0, 1)
        freq = base ** (-i / n)
        freq = freq / config.yarn_factor * ramp + freq * (1 - ramp)
    angle = (torch.arange(length, dtype=torch.float32)[:, None] * freq.float()).double()
    return angle.cos().float(), angle.sin().float()


def rope(x, cos, sin, inverse=False):
    """Rotates interleaved pairs of the last 2 * cos.shape[-1] channels."""
    n = cos.shape[-1] * 2
    a, b = x[..., -n:].float().unflatten(-1, (-1, 2)).unbind(-1)
    sin = -sin if inverse else sin
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-n], turned.to(x.dtype)], -1)


def swiglu(gate, up, weight, limit):
    """silu(gate) * up * weight with the clamps of the family; weight [rows, 1] or None."""
    h = F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    return (h if weight is None else h * weight).to(gate.dtype)


# ---- hyper-connections (mHC) --------------------------------------------------------------------------------------------------


def hc_mix(X, fn, base, scale, iters, eps, norm_eps):
    """X [..., n, H] -> pre [..., n], post [..., n], comb [..., n, n] (doubly stochastic by Sinkhorn)."""
    n = X.shape[-2]
    f = X.flatten(-2)
    m = F.linear(f, fn.to(f.dtype)).float() * torch.rsqrt(f.float().square().mean(-1, keepdim=True) + norm_eps)
    pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((m[..., 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n)), -1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


def hc_collapse(X, pre):
    return (pre.unsqueeze(-1) * X.float()).sum(-2).to(X.dtype)


def hc_site(X, pre, fn, base, scale, norm_weight, iters, eps, norm_eps):
    """Entry of one sub-layer: (normed input of the sub-layer, pre for the next site, post, comb)."""
    x = rms_norm(hc_collapse(X, pre), norm_weight, norm_eps)
    return (x, *hc_mix(X, fn, base, scale, iters, eps, norm_eps))


def hc_expand(y, X, post, comb):
    """Exit of one sub-layer: the new streams [..., n, H]."""
    Xf = X.float()
    out = post.unsqueeze(-1) * y.float().unsqueeze(-2)
    for j in range(X.shape[-2]):
        out = out + comb[..., j, :].unsqueeze(-1) * Xf[..., j, None, :]
    return out.to(X.dtype)


# ---- attention ------------------------------------------------------------------------------------------------------------------


class Layout:
    """Which positions of a packed batch see each other.  start[b, t] = index of the first token of t's document (even)."""

    def __init__(self, start, window, ratios):
        self.start, self.window = start, window
        B, T = start.shape
        pos = torch.arange(T, device=start.device)
        key = (pos // window * window - window)[:, None] + torch.arange(2 * window, device=start.device)
        near = (key <= pos[:, None]) & (key > pos[:, None] - window) & (key >= 0)
        self._window_mask = lambda: (near[None] & (key[None] >= start[..., None])).unsqueeze(2)
        self._compressed = lambda r: (
            (torch.arange(T // r, device=start.device) < (pos[:, None] + 1) // r)[None]
            & (torch.arange(T // r, device=start.device) * r >= start[..., None])
        )
        self._cache = {}

    def window_mask(self):  # [B, T, 1, 2 * window]
        if "w" not in self._cache:
            self._cache["w"] = self._window_mask()
        return self._cache["w"]

    def compressed_mask(self, ratio):  # [B, T, T / ratio]
        if ratio not in self._cache:
            self._cache[ratio] = self._compressed(ratio)
        return self._cache[ratio]


def attend(q, kv, compressed, ratio, layout, selected, sink, want_mass=False):
    """q [B, T, heads, D] scaled; kv [B, T, D] (window keys = values); compressed [B, T / ratio, D] or None; selected [B, T, T / ratio]
    or None.  Returns [B, T, heads, D] and, if wanted, the attention mass on compressed rows summed over heads."""
    B, T, heads, D = q.shape
    W = layout.window
    blocks = T // W
    cur = kv.view(B, blocks, W, D)
    keys = torch.cat([F.pad(cur, (0, 0, 0, 0, 1, 0))[:, :-1], cur], 2).reshape(B * blocks, 2 * W, D)
    near = (q.reshape(B * blocks, W * heads, D) @ keys.mT).view(B, T, heads, 2 * W)
    parts = [near.float().masked_fill(~layout.window_mask(), NEG)]
    if compressed is not None:
        mask = layout.compressed_mask(ratio)
        mask = (mask if selected is None else mask & selected).unsqueeze(2)
        parts.append((q.reshape(B, T * heads, D) @ compressed.mT).view(B, T, heads, -1).float().masked_fill(~mask, NEG))
    parts.append(sink.view(1, 1, -1, 1).expand(B, T, heads, 1).float())
    p = torch.softmax(torch.cat(parts, -1), -1).to(q.dtype)
    out = (p[..., : 2 * W].reshape(B * blocks, W * heads, 2 * W) @ keys).view(B, T, heads, D)
    mass = None
    if compressed is not None:
        far = p[..., 2 * W : -1]
        out = out + (far.reshape(B, T * heads, -1) @ compressed).view(B, T, heads, D)
        mass = far.detach().float().sum(2) if want_mass else None
    return out, mass


# ---- choice of implementation --------------------------------------------------------------------------------------


NAMES = ("rms_norm", "rope", "swiglu", "hc_site", "hc_expand", "attend", "fake_fp8", "fake_fp4")
COMPILED = ("rms_norm", "rope", "swiglu", "hc_site", "hc_expand")


class Ops:
    """The versions in use: plain, C++ (fused.use) or, on accelerators, compiled."""


def use_plain():
    for name in NAMES:
        setattr(Ops, name, staticmethod(globals()[name]))


def use_compiled(device):
    """Compiles for any batch size, and tries everything once: compilation happens, and fails, at the first call."""
    for name in COMPILED:
        setattr(Ops, name, staticmethod(torch.compile(globals()[name], dynamic=True)))
    for rows in (24, 40):
        make = lambda *shape: torch.randn(*shape, device=device, dtype=Precision.compute, requires_grad=True)
        real = lambda *shape: torch.randn(*shape, device=device, requires_grad=True)
        x, table = make(2, rows, 4, 64), real(rows, 1, 8).detach()
        pre = real(2, rows, 4)
        y, pre, post, comb = Ops.hc_site(x, pre, real(24, 256), real(24), real(3), real(64), 20, 1e-6, 1e-20)
        x = Ops.hc_expand(Ops.rms_norm(y, real(64), 1e-20), x, post, comb)
        x = Ops.rope(x, table, table)
        h = Ops.swiglu(x.flatten(0, 2), x.flatten(0, 2), real(8 * rows, 1), 10.0)
        (h.float().sum() + pre.sum()).backward()


@contextmanager
def plain_if_compiled():
    """For evaluations, whose many shapes would be compiled one by one."""
    before = {name: Ops.__dict__[name] for name in NAMES}
    if hasattr(Ops.rms_norm, "_torchdynamo_orig_callable"):
        use_plain()
    try:
        yield
    finally:
        for name, f in before.items():
            setattr(Ops, name, f)


@contextmanager
def exact():
    """Plain operators in float32, nothing quantised on the way, products unrounded: what other implementations are compared with."""
    global fake_fp8
    before = {name: Ops.__dict__[name] for name in NAMES}, fake_fp8, Precision.compute, torch.get_float32_matmul_precision()
    use_plain()
    Ops.fake_fp8 = Ops.fake_fp4 = staticmethod(lambda x, *a: x)
    fake_fp8 = lambda x, *a: x  # the engram's
    Precision.compute = torch.float32
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        for name, f in before[0].items():
            setattr(Ops, name, f)
        fake_fp8, Precision.compute = before[1:3]
        torch.set_float32_matmul_precision(before[3])


use_plain()
