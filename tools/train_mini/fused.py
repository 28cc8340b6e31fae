"""Compiles fused.cc and puts its operators in place of the plain ones (float32 on a CPU)."""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from ops import Ops

SOURCE = Path(__file__).with_name("fused.cc")
# No -ffast-math: it would switch the whole process to flushing denormals.  Sums may be reordered, which vectorising needs.
FLAGS = [
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-mprefer-vector-width=512",
    "-freciprocal-math",
]


@cache
def library():
    cpu = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    name = hashlib.sha256((SOURCE.read_text() + " ".join(FLAGS) + cpu).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "galley-train"
    path = folder / f"fused-{name}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            built = Path(place) / "fused.so"
            subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, str(SOURCE), "-o", str(built)], check=True)
            os.replace(built, path)
    return ctypes.CDLL(str(path))


def call(name, *args):
    """Tensors go as pointers, whole numbers as long, Python floats as float; ("int", x) as int."""
    out = []
    for a in args:
        if isinstance(a, torch.Tensor):
            out.append(ctypes.c_void_p(a.data_ptr()))
        elif a is None:
            out.append(ctypes.c_void_p(None))
        elif isinstance(a, float):
            out.append(ctypes.c_float(a))
        elif isinstance(a, tuple):
            out.append(ctypes.c_int(a[1]))
        else:
            out.append(ctypes.c_long(a))
    getattr(library(), name)(*out)


def set_threads(count):
    """For operators called from this thread; torch.set_num_threads does not reach them."""
    call("set_threads", ("int", count))


class Site(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, pre, fn, base, scale, norm, iters, eps, norm_eps):
        X, pre = X.contiguous(), pre.contiguous()
        H = X.shape[-1]
        n = X.numel() // (4 * H)
        shape = X.shape[:-2]
        x, r, rc = X.new_empty(*shape, H), X.new_empty(n), X.new_empty(n)
        call("site_forward", X, pre, norm, x, r, rc, n, H, norm_eps)
        mix = X.view(n, 4 * H) @ fn.t()
        pre2, post, comb = X.new_empty(*shape, 4), X.new_empty(*shape, 4), X.new_empty(*shape, 4, 4)
        call("mix_coefficients", mix, r, base, scale, pre2, post, comb, *[None] * 7, n, ("int", iters), eps)
        ctx.save_for_backward(X, pre, fn, base, scale, norm, r, rc, mix)
        ctx.constants = iters, eps
        return x, pre2, post, comb

    @staticmethod
    def backward(ctx, gx, gpre2, gpost, gcomb):
        X, pre, fn, base, scale, norm, r, rc, mix = ctx.saved_tensors
        iters, eps = ctx.constants
        H = X.shape[-1]
        n = X.numel() // (4 * H)
        zeros = lambda g, *shape: X.new_zeros(*shape) if g is None else g.contiguous()
        gx, gpre2, gpost, gcomb = zeros(gx, n, H), zeros(gpre2, n, 4), zeros(gpost, n, 4), zeros(gcomb, n, 16)
        gmix, gr, gbase, gscale = X.new_empty(n, 24), X.new_empty(n), torch.zeros_like(base), torch.zeros_like(scale)
        call(
            "mix_coefficients",
            mix,
            r,
            base,
            scale,
            None,
            None,
            None,
            gpre2,
            gpost,
            gcomb,
            gmix,
            gr,
            gbase,
            gscale,
            n,
            ("int", iters),
            eps,
        )
        gX, gpre, gnorm = torch.empty_like(X), torch.empty_like(pre), torch.zeros_like(norm)
        call("site_backward", X, pre, norm, r, rc, gx, gr, gX, gpre, gnorm, n, H)
        gX.view(n, 4 * H).addmm_(gmix, fn)
        return gX, gpre, gmix.t() @ X.view(n, 4 * H), gbase, gscale, gnorm, None, None, None


class Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, X, post, comb):
        y, X, post, comb = (t.contiguous() for t in (y, X, post, comb))
        out = torch.empty_like(X)
        H = X.shape[-1]
        call("expand_forward", y, X, post, comb, out, y.numel() // H, H)
        ctx.save_for_backward(y, X, post, comb)
        return out

    @staticmethod
    def backward(ctx, g):
        saved = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in saved]
        H = saved[0].shape[-1]
        call("expand_backward", *saved, g.contiguous(), *grads, saved[0].numel() // H, H)
        return tuple(grads)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, rows, start, sink, selected, window, ratio, want_mass):
        q, kv, rows, start = (
            q.contiguous(),
            kv.contiguous(),
            rows if rows is None else rows.contiguous(),
            start.contiguous(),
        )
        selected = None if selected is None else selected.contiguous().view(torch.uint8)
        B, T, heads, D = q.shape
        out, lse = torch.empty_like(q), q.new_empty(B, T, heads)
        mass = q.new_zeros(B, T, T // ratio) if want_mass else None
        sizes = (B, T, ("int", heads), ("int", D), ("int", window), ("int", ratio))
        call("attend_forward", q, kv, rows, start, sink, selected, out, lse, mass, *sizes)
        ctx.save_for_backward(q, kv, rows, start, sink, selected, out, lse)
        ctx.sizes = sizes
        if mass is not None:
            ctx.mark_non_differentiable(mass)
        return out, mass

    @staticmethod
    def backward(ctx, g, _):
        q, kv, rows, start, sink, selected, out, lse = ctx.saved_tensors
        gq, gkv, gsink = torch.empty_like(q), torch.zeros_like(kv), torch.zeros_like(sink)
        grows = None if rows is None else torch.zeros_like(rows)
        call(
            "attend_backward",
            q,
            kv,
            rows,
            start,
            sink,
            selected,
            out,
            lse,
            g.contiguous(),
            gq,
            gkv,
            grows,
            gsink,
            *ctx.sizes,
        )
        return gq, gkv, grows, None, gsink, None, None, None, None


class Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, weight, limit):
        n, width = gate.shape
        out = gate.new_empty(n, width)
        call("swiglu_forward", gate, up, weight, out, n, width, gate.stride(0), limit)
        ctx.save_for_backward(gate, up, weight)
        ctx.limit = limit
        return out

    @staticmethod
    def backward(ctx, g):
        gate, up, weight = ctx.saved_tensors
        n, width = gate.shape
        both = gate.new_empty(n, 2, width)
        gw = None if weight is None else torch.empty_like(weight)
        call(
            "swiglu_backward",
            gate,
            up,
            weight,
            g.contiguous(),
            both[:, 0],
            both[:, 1],
            gw,
            n,
            width,
            gate.stride(0),
            2 * width,
            ctx.limit,
        )
        return both[:, 0], both[:, 1], gw, None


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.contiguous()
        y, width = torch.empty_like(x), x.shape[-1]
        r = x.new_empty(x.numel() // width)
        call("rms_forward", x, weight, y, r, len(r), width, eps)
        ctx.save_for_backward(x, weight, r)
        return y

    @staticmethod
    def backward(ctx, g):
        x, weight, r = ctx.saved_tensors
        gx, gweight = torch.empty_like(x), torch.zeros_like(weight)
        call("rms_backward", x, weight, r, g.contiguous(), gx, gweight, len(r), x.shape[-1])
        return gx, gweight, None


class Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, sign):
        ctx.save_for_backward(cos, sin)
        ctx.sign = sign
        return Rope.turn(x.contiguous(), cos, sin, sign)

    @staticmethod
    def turn(x, cos, sin, sign):
        """cos, sin [T, pairs], or [T, 1, pairs] for x [B, T, heads, D]."""
        y, pairs, width = torch.empty_like(x), cos.shape[-1], x.shape[-1]
        repeat = x.shape[-2] if cos.ndim == 3 else 1
        call("rope_rows", x, cos, sin, y, x.numel() // width, width, pairs, repeat, cos.shape[0], float(sign))
        return y

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return Rope.turn(g.contiguous(), cos, sin, -ctx.sign), None, None, None


class Quantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, block, kind):
        x = x.contiguous()
        y = torch.empty_like(x)
        call("fake_quantise", x, y, x.numel() // block, block, ("int", kind))
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None, None


def attend(q, kv, compressed, ratio, layout, selected, sink, want_mass=False):
    return Attend.apply(
        q,
        kv,
        compressed,
        layout.start,
        sink,
        selected,
        layout.window,
        ratio if compressed is not None else 0,
        want_mass,
    )


def use():
    library()
    Ops.hc_site = staticmethod(
        lambda X, pre, fn, base, scale, norm, iters, eps, norm_eps: Site.apply(
            X, pre, fn, base, scale, norm, iters, eps, norm_eps
        )
    )
    Ops.hc_expand = staticmethod(lambda y, X, post, comb: Expand.apply(y, X, post, comb))
    Ops.attend = staticmethod(attend)
    Ops.swiglu = staticmethod(lambda gate, up, weight, limit: Swiglu.apply(gate, up, weight, limit))
    Ops.rms_norm = staticmethod(lambda x, weight, eps: RmsNorm.apply(x, weight, eps))
    Ops.rope = staticmethod(
        lambda x, cos, sin, inverse=False: Rope.apply(x, cos.contiguous(), sin.contiguous(), -1 if inverse else 1)
    )
    Ops.fake_fp8 = staticmethod(lambda x, block=32: Quantise.apply(x, block, 8))
    Ops.fake_fp4 = staticmethod(lambda x, block=32, e4m3_scale=False: Quantise.apply(x, block, 41 if e4m3_scale else 4))
