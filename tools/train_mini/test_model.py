"""The fused operators against the plain ones, values and gradients; the whole network with both. Needs torch."""

import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

import copy
from pathlib import Path

import model
import ops
from ops import Ops
from token_map import token_map

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def one_precision(monkeypatch):
    """Both of a pair of trainers must round alike; which way is faster changes with what else the machine does."""
    import train

    monkeypatch.setattr(train, "measured_seconds", lambda: 1.0)


@pytest.fixture
def plain_then_fused():
    fused = pytest.importorskip("fused")
    ops.Precision.compute = torch.float32
    yield fused
    ops.use_plain()


def leaves(*shapes, scale=1.0):
    g = torch.Generator().manual_seed(5)
    return [(torch.randn(*s, generator=g) * scale).requires_grad_() for s in shapes]


def run(f, inputs):
    """Outputs and gradients of a fixed random projection of them."""
    fresh = [i.detach().clone().requires_grad_(i.requires_grad) if isinstance(i, torch.Tensor) else i for i in inputs]
    out = f(*fresh)
    out = [o for o in (out if isinstance(out, tuple) else (out,)) if o is not None]
    g = torch.Generator().manual_seed(6)
    sum((o * torch.randn(o.shape, generator=g)).sum() for o in out).backward()
    return out + [i.grad for i in fresh if isinstance(i, torch.Tensor) and i.requires_grad]


def agree(plain, fast, inputs, tolerance=2e-5):
    for a, b in zip(run(plain, inputs), run(fast, inputs), strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance * max(1.0, a.abs().max()), (a - b).abs().max() / a.abs().max()


def test_hyper_connections(plain_then_fused):
    plain_then_fused.use()
    X, pre, fn, base, scale, norm = leaves((3, 7, 4, 64), (3, 7, 4), (24, 256), (24,), (3,), (64,))
    agree(ops.hc_site, Ops.hc_site, [X, pre, fn, base, scale, norm, 20, 1e-6, 1e-20], 1e-4)
    y, X, post, comb = leaves((3, 7, 64), (3, 7, 4, 64), (3, 7, 4), (3, 7, 4, 4))
    agree(ops.hc_expand, Ops.hc_expand, [y, X, post, comb])


@pytest.mark.parametrize("width", [32, 64])  # 64: the shape of galley-mini, which has its own code
@pytest.mark.parametrize("ratio, chosen", [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)])
def test_attention(plain_then_fused, ratio, chosen, width):
    plain_then_fused.use()
    q, kv, rows, sink = leaves((2, 128, 4, width), (2, 128, width), (2, 128 // max(ratio, 1), width), (4,), scale=0.7)
    start = torch.zeros(2, 128, dtype=torch.long)
    start[0, 38:] = 38
    start[1, 90:] = 90
    layout = ops.Layout(start, 32, {1, 2})
    selected = (torch.rand(2, 128, 128 // ratio, generator=torch.Generator().manual_seed(8)) < 0.4) if chosen else None
    both = [
        lambda q, kv, rows, sink, f=f: (
            f(q, kv, rows if ratio else None, ratio, layout, selected, sink)[0] + 0 * rows.sum()
        )
        for f in (ops.attend, Ops.attend)
    ]
    agree(*both, [q, kv, rows, sink])
    if ratio:
        plain, fast = (f(q, kv, rows, ratio, layout, selected, sink, True)[1] for f in (ops.attend, Ops.attend))
        assert (plain - fast).abs().max() < 1e-5


def test_small_operators(plain_then_fused):
    plain_then_fused.use()
    gate, up, weight = leaves((50, 32), (50, 32), (50, 1), scale=8.0)
    agree(lambda *a: ops.swiglu(*a, 10.0), lambda *a: Ops.swiglu(*a, 10.0), [gate, up, weight])
    x, w = leaves((9, 5, 96), (96,))
    agree(lambda *a: ops.rms_norm(*a, 1e-20), lambda *a: Ops.rms_norm(*a, 1e-20), [x, w])
    cos, sin = torch.rand(5, 8), torch.rand(5, 8)
    agree(lambda x: ops.rope(x, cos, sin), lambda x: Ops.rope(x, cos, sin), [x])
    (y,) = leaves((2, 5, 3, 32))
    agree(
        lambda x: ops.rope(x, cos[:, None], sin[:, None], True),
        lambda x: Ops.rope(x, cos[:, None], sin[:, None], True),
        [y],
    )


def test_fake_quantisation_is_bit_equal(plain_then_fused):
    plain_then_fused.use()
    x = torch.randn(64, 64) * torch.exp2(torch.randint(-20, 8, (64, 1)).float())
    x[0] = 0
    for plain, fast in (
        (ops.fake_fp8, Ops.fake_fp8),
        (ops.fake_fp4, Ops.fake_fp4),
        (lambda t: ops.fake_fp4(t, 16, True), lambda t: Ops.fake_fp4(t, 16, True)),
    ):
        # The plain version adds the difference back to x, which may round once more.
        assert torch.allclose(plain(x), fast(x), rtol=1e-6, atol=0)


def test_grouped_products():
    rows, weights = leaves((10, 8), (3, 5, 8))
    agree(
        lambda r, w: model.GroupedLinear.apply(r, w, [4, 0, 6]),
        lambda r, w: model.grouped_padded(r, w, [4, 0, 6]),
        [rows, weights],
    )


def test_padded_groups_change_no_sum():
    """Rows of weight 0 fill every expert's group; the weighted sum of each token stays."""
    chosen = torch.randint(0, 5, (90,), generator=torch.Generator().manual_seed(3))
    chosen[chosen == 2] = 3  # an expert without rows
    order = chosen.argsort(stable=True)
    count = torch.bincount(chosen, minlength=5)
    token, weight, sizes = model.padded_groups(order // 2, order.float() + 1, count)
    assert all(size % model.GROUP == 0 for size in sizes) and sizes[2] == 0 and len(token) == len(weight) == sum(sizes)
    expert = torch.repeat_interleave(torch.arange(5), torch.tensor(sizes))
    sums = torch.zeros(45, 5).index_put_((token, expert), weight, accumulate=True)
    want = torch.zeros(45, 5).index_put_((torch.arange(90) // 2, chosen), torch.arange(90.0) + 1, accumulate=True)
    assert torch.equal(sums, want)


def test_an_export_is_read_back(tmp_path):
    import export

    tok = tokenizers.Tokenizer.from_file(str(HERE / "tokenizer.json"))
    config = model.Config.load(HERE / "config_tiny.json")
    torch.manual_seed(4)
    nets = model.Backbone(config, token_map(tok)), model.Drafter(config)
    export.write(*nets, tok, tmp_path / "first", config=HERE / "config_tiny.json")
    weights = export.dequantised(tmp_path / "first")
    for net, drafter in zip(nets, (False, True)):
        before = {k: v.clone() for k, v in net.state_dict().items()}
        export.read_back(net, weights, drafter)
        for k, v in net.state_dict().items():
            error = (v - before[k]).square().mean() / before[k].square().mean().clamp_min(1e-9)
            assert error < 0.02, (k, error)  # FP4 keeps 12 % of a weight's rms, FP8 3 %
    # What was read back is stored as it is; a block's scale may be halved where that loses nothing.
    export.write(*nets, tok, tmp_path / "second", config=HERE / "config_tiny.json")
    again = export.dequantised(tmp_path / "second")
    assert all(torch.equal(w, again[name]) for name, w in weights.items())


def test_whole_network(plain_then_fused):
    config = model.Config.load(HERE / "config.json")
    torch.manual_seed(1)
    tok = tokenizers.Tokenizer.from_file(str(HERE / "tokenizer.json"))
    net = model.Backbone(config, token_map(tok))
    ids = torch.randint(3, 4000, (2, 128))
    start = torch.zeros_like(ids)
    start[0, 60:] = 60
    projection, results = torch.randn(2, 128, config.hidden_size), []
    # Rounding to FP8 and FP4 turns tiny differences into whole steps, so it is left out here.
    for fast in (False, True):
        ops.use_plain()
        if fast:
            plain_then_fused.use()
        Ops.fake_fp8 = Ops.fake_fp4 = staticmethod(lambda x, *a: x)
        twin = copy.deepcopy(net)
        hidden, _ = twin(ids, start)
        (hidden * projection).sum().backward()
        results.append((hidden.detach(), {k: p.grad for k, p in twin.named_parameters() if p.grad is not None}))
    (h1, g1), (h2, g2) = results
    assert (h1 - h2).abs().max() < 2e-4
    assert g1.keys() == g2.keys()
    for k in g1:
        assert (g1[k] - g2[k]).norm() <= 2e-3 * g1[k].norm() + 1e-7, k


def tiny_trainer(run, out, tokens, workers=0, threads=2):
    import argparse

    import train

    args = argparse.Namespace(
        run=str(run),
        out=str(out),
        threads=threads,
        checkpoint_minutes=1e9,
        evaluate_every=1e9,
        final_samples=2,
        start=None,
        workers=workers,
        plain=False,
        minutes=0,
    )
    mix = dict(chat=1, fact=1, story=1, para=1)
    stages = [
        train.Stage("a", tokens, mix, 2, 256),
        train.Stage("i", tokens, mix, 2, 256, mode="index", decays=True, takes_export=True),
        train.Stage("s", tokens, mix, 2, 256, mode="sparse"),
        train.Stage("d", tokens, mix, 2, 256, mode="drafter", decays=True),
    ]
    return train.Trainer(args, stages, HERE / "config_tiny.json")


def test_all_stages_to_the_shipped_files(tmp_path):
    pytest.importorskip("safetensors")
    trainer = tiny_trainer(tmp_path / "run", tmp_path / "out", 1024)
    trainer.evaluate = lambda stage, count=2, evaluate=trainer.evaluate: evaluate(stage, 2)
    trainer.train()
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 2_000_000
    assert (tmp_path / "run" / "after_d.pt").exists()
    assert (tmp_path / "run" / "eval.csv").read_text().count("final") > 10
    # Everything is done: started again, nothing is left to train.
    again = tiny_trainer(tmp_path / "run", tmp_path / "out", 1024)
    again.finish = again.evaluate = lambda *a: None
    again.train()
    assert again.step == trainer.step
    ops.use_plain()


def test_resuming_gives_the_same_weights(tmp_path):

    whole = tiny_trainer(tmp_path / "whole", tmp_path / "out", 2048)
    whole.stages = whole.stages[:1]
    whole.finish = whole.evaluate = lambda *a: None
    whole.train()

    class Killed(Exception):
        pass

    def kill(*args):
        if cut.done >= 1024:
            cut.save()
            raise Killed

    cut = tiny_trainer(tmp_path / "cut", tmp_path / "out", 2048)
    cut.stages = cut.stages[:1]
    cut.report = kill
    cut.evaluate = lambda *a: None
    with pytest.raises(Killed):
        cut.train()
    rest = tiny_trainer(tmp_path / "cut", tmp_path / "out", 2048, workers=1)  # who prepares the data changes nothing
    rest.stages = rest.stages[:1]
    rest.finish = rest.evaluate = lambda *a: None
    rest.train()
    ops.use_plain()
    assert rest.step == whole.step
    for (k, a), (_, b) in zip(whole.model.state_dict().items(), rest.model.state_dict().items()):
        assert torch.equal(a, b), k


def test_a_run_goes_on_from_an_export(tmp_path):
    import export

    first = tiny_trainer(tmp_path / "first", tmp_path / "out", 512)
    export.write(first.model, first.drafter, first.encoder.tokenizer, tmp_path / "out", config=HERE / "config_tiny.json")
    torch.manual_seed(9)
    second = tiny_trainer(tmp_path / "second", tmp_path / "out2", 512)
    with torch.no_grad():
        second.model.norm.weight.zero_()
    second.args.start = str(tmp_path / "out")
    second.stages = second.stages[:2]
    second.finish = second.evaluate = lambda *a: None
    seen = []
    second.train_stage = lambda stage: seen.append((stage.name, second.model.norm.weight.clone()))
    second.train()
    ops.use_plain()
    assert [name for name, _ in seen] == ["i"]
    assert torch.equal(seen[0][1], first.model.norm.weight)


def test_padding_of_the_head_changes_no_loss():
    import train

    torch.manual_seed(3)
    config = model.Config.load(HERE / "config_tiny.json")
    tok = tokenizers.Tokenizer.from_file(str(HERE / "tokenizer.json"))
    ops.Precision.compute = torch.float32
    ops.use_plain()
    net = model.Backbone(config, token_map(tok)).eval()
    ids = torch.randint(3, 4000, (2, 64))
    start = torch.zeros_like(ids)
    weight = torch.rand(2, 63, generator=torch.Generator().manual_seed(1)).round()
    whole = weight.sum(), weight.sum(), 1
    with torch.no_grad():
        loss, answers, _ = train.losses(net, ids, start, weight, whole)
        logits = net.head(net(ids, start)[0][:, :-1])
        want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    want = (want * weight.flatten()).sum() / weight.sum()
    assert abs(loss - want) < 1e-5 and abs(answers - want) < 1e-5


def test_paths_of_an_accelerator(tmp_path, monkeypatch):
    """bfloat16, padded experts and grouped Muon, which otherwise only run where there is a GPU."""
    import optim
    import train

    def bfloat16(device):
        ops.Precision.compute = torch.bfloat16
        return "bfloat16"

    def by_shape(params):
        shapes = {}
        for p in params:
            shapes.setdefault(p.shape[-2:], []).append(p)
        return list(shapes.values())

    monkeypatch.setattr(train, "choose_precision", bfloat16)
    monkeypatch.setattr(train, "choose_ops", lambda device: ops.use_plain() or "plain")
    monkeypatch.setattr(model, "grouped", model.grouped_padded)
    monkeypatch.setattr(optim.Muon, "batches", staticmethod(by_shape))
    trainer = tiny_trainer(tmp_path / "run", tmp_path / "out", 1024, threads=1)
    trainer.evaluate = trainer.finish = lambda *a: None
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    trainer.train()
    ops.Precision.compute = torch.float32
    assert trainer.step == 8
    for k, v in trainer.model.state_dict().items():
        assert torch.isfinite(v).all(), k
    assert not torch.equal(before["layers.3.ffn.w1"], trainer.model.state_dict()["layers.3.ffn.w1"])


def test_hands_add_up():
    """Two threads with half of the rows each give the gradient of the whole batch."""
    import train

    ops.Precision.compute = torch.float32
    torch.manual_seed(2)
    net = torch.nn.Linear(8, 5)
    x, y = torch.randn(4, 8), torch.randint(5, (4,))

    def part(rows, number):
        ce = torch.nn.functional.cross_entropy(net(x[rows]), y[rows], reduction="sum") / 4
        return ce, ce.detach(), None

    grads = []
    for count in (1, 2):
        value, _ = train.Hands(count, False).gradients(part, list(net.parameters()), 4)
        grads.append([value] + [p.grad.clone() for p in net.parameters()])
    for a, b in zip(*grads):
        assert torch.allclose(a, b, atol=1e-6)
