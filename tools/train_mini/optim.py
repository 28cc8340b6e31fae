"""Muon for matrices, AdamW for the rest."""

import torch

import ops

# Coefficients of the quintic steps towards the nearest orthogonal matrix (Polar Express, arXiv 2505.16932). Three steps instead of
# the usual five: on a CPU they cost a sixth of all products, and Muon does not need exact singular values.
POLAR = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
]


def orthogonalise(u):
    """The last two axes as a matrix; singular values go to about 1."""
    tall = u.shape[-2] > u.shape[-1]
    u = u.mT if tall else u
    u = u / (u.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    for a, b, c in POLAR:
        g = u @ u.mT
        g = torch.baddbmm(g, g, g, beta=b, alpha=c) if g.ndim == 3 else torch.addmm(g, g, g, beta=b, alpha=c)
        u = torch.baddbmm(u, g, u, beta=a) if u.ndim == 3 else torch.addmm(u, g, u, beta=a)
    return u.mT if tall else u


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    def step(self, run_all=lambda f, items: [f(i) for i in items]):
        """run_all(f, items) may call f in several threads: the parameters do not depend on each other."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                self.state[p].setdefault("momentum", torch.zeros_like(p))
            run_all(lambda alike: self.update(alike, group["lr"], group["momentum"]), self.batches(params))

    @torch.no_grad()
    def update(self, alike, lr, momentum):
        """One step of parameters whose matrices have the same shape."""
        moments = []
        for p in alike:
            m = self.state[p]["momentum"]
            m.lerp_(p.grad, 1 - momentum)
            moments.append(p.grad.lerp(m, momentum).to(ops.Precision.compute))
        size = -lr * 0.2 * max(alike[0].shape[-2:]) ** 0.5
        if len(alike) == 1:
            alike[0].add_(orthogonalise(moments[0]).float(), alpha=size)
        else:
            flat = [m if m.ndim == 3 else m[None] for m in moments]
            for p, u in zip(alike, orthogonalise(torch.cat(flat)).split([len(f) for f in flat])):
                p.add_(u.view_as(p).float(), alpha=size)

    @staticmethod
    def batches(params):
        """Accelerators take matrices of one shape together, for fewer launches; a CPU takes each alone, for its cache."""
        if not params or not params[0].is_cuda:
            return [[p] for p in params]
        shapes = {}
        for p in params:
            shapes.setdefault(p.shape[-2:], []).append(p)
        return list(shapes.values())


NOT_MATRICES = (
    "embed",
    "head.weight",
    "hc_",
    "gate.weight",
    "q_weight",
    "k_weight",
    "weights_proj",
    "markov",
    "confidence",
)


class Optimizers:
    """Three groups with their own rates: matrices, everything else, tables of embeddings."""

    def __init__(self, modules, rates):
        """modules: the modules whose trainable parameters are optimised; rates = (matrices, rest, embeddings)."""
        matrices, rest, tables = [], [], []
        for module in modules:
            for name, p in module.named_parameters():
                if not p.requires_grad:
                    continue
                if name.endswith("embed.weight"):
                    tables.append(p)
                elif p.ndim >= 2 and not any(part in name for part in NOT_MATRICES):
                    matrices.append(p)
                else:
                    rest.append(p)
        self.params = matrices + rest + tables
        adam = dict(betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.parts = [
            (kind(group, rate, **extra), rate)
            for kind, group, rate, extra in (
                (Muon, matrices, rates[0], {}),
                (torch.optim.AdamW, rest, rates[1], adam),
                (torch.optim.AdamW, tables, rates[2], adam),
            )
            if group
        ]

    def step(self, factor, run_all):
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        for optimizer, rate in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step(run_all) if isinstance(optimizer, Muon) else optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self):
        return [optimizer.state_dict() for optimizer, _ in self.parts]

    def load_state_dict(self, states):
        for (optimizer, _), state in zip(self.parts, states, strict=True):
            optimizer.load_state_dict(state)
