"""Attention-like aggregators against the formulas of their papers, with keys and values of every token written out."""

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm

from probe.aggregators import make_aggregator
from probe.grid import HeadSpec
from probe.optim import LARS
from probe.stack import Stack
from store import BeyondClsError

B, T, D = 3, 10, 24
torch.manual_seed(7)
PATCH = torch.randn(B, T, D, dtype=torch.float64) * 2 + 0.5
CLS = torch.randn(B, D, dtype=torch.float64) * 3 - 1
BAGS = {"patch": PATCH, "all": torch.cat([CLS[:, None], PATCH], 1)}


def make(name, **options):
    """In float64, with all parameters (scales, shifts and biases too) away from where they start."""
    torch.manual_seed(0)
    aggregator = make_aggregator(name, D, **options).double()
    with torch.no_grad():
        for p in aggregator.parameters():
            p += torch.randn_like(p) * 0.2
    return aggregator


def attention(query, keys, values, heads):
    """Multi-head attention of one query [B, 1, D] to keys and values [B, T, D] -> [B, 1, D], [B, T]."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, keys, values))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2), weights.mean((1, 2))


def mlp(a, y, norm):
    return y + a.fc2(gelu(a.fc1(layer_norm(y, (D,), norm.weight, norm.bias, 1e-5))))


def check(aggregator, vector, weights):
    """Values, and gradients of the explicit formula's parameters: they are the same tensors."""
    vector = vector.flatten(1)
    got = aggregator({"patch": PATCH, "cls": CLS})
    torch.testing.assert_close(tuple(got), (vector, weights), rtol=1e-10, atol=1e-10)
    names, parameters = zip(*aggregator.named_parameters(), strict=True)
    towards = torch.randn_like(vector)
    ours, theirs = (torch.autograd.grad((x * towards).sum(), parameters) for x in (got.vector, vector))
    for name, a, b in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("heads", [1, 12])
@pytest.mark.parametrize("norm", [False, True])
def test_attentive_probing(heads, norm):
    a = make("ap", heads=heads, norm=norm)
    x = layer_norm(PATCH, (D,), a.norm.weight, a.norm.bias, 1e-6) if norm else PATCH
    check(a, *attention(a.query.expand(B, 1, D), a.key(x), a.value(x), heads))


@pytest.mark.parametrize("options", [{"heads": 1}, {"heads": 12, "norm": True}, {"form": "cae", "top_k": 3}])
def test_attentive_probing_of_blocks(options):
    """[cls] of each block, then its average patch: as it attends to these as tokens; averages that are stored are read."""
    of_blocks, of_tokens = make("ap", blocks=[2, 0], **options), make("ap", **options)
    cls, patch = (torch.randn(2, *x.shape, dtype=torch.float64) for x in (CLS, PATCH))
    features = {f"{kind}/block{b}": x[i] for kind, x in (("cls", cls), ("patch", patch)) for i, b in enumerate((2, 0))}
    expected = of_tokens({"patch": torch.stack([*cls, *patch.mean(2)], 1)}).vector
    torch.testing.assert_close(tuple(of_blocks(features)), (expected, None), rtol=1e-10, atol=1e-10)
    of_blocks.use_vectors(lambda kind: kind == "average/block2")
    assert of_blocks.reads == tuple(features), "not all are there"
    of_blocks.use_vectors(lambda kind: kind.startswith("average/"))
    averages = {f"average/block{b}": x.mean(1) for b, x in zip((2, 0), patch, strict=True)}
    assert of_blocks.reads == ("cls/block2", "cls/block0", *averages)
    torch.testing.assert_close(of_blocks(features | averages).vector, expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(BeyondClsError, match="tokens is 'all', but blocks"):
        make("ap", blocks=[0], tokens="all")


@pytest.mark.parametrize("tokens", BAGS)
@pytest.mark.parametrize("heads", [1, 12])
def test_attentive_probing_of_aim(heads, tokens):
    a, norm = make("ap", heads=heads, form="aim", tokens=tokens), nn.BatchNorm1d(D, eps=1e-6, affine=False).double()
    for training in (True, True, False):
        a.train(training)
        x = norm.train(training)(BAGS[tokens].mT).mT
        before = {name: buffer.clone() for name, buffer in a.named_buffers()}
        check(a, *attention(a.query.expand(B, 1, D), a.key(x), a.value(x), heads))
        torch.testing.assert_close((a.statistics.mean, a.statistics.variance), (norm.running_mean, norm.running_var))
        assert all(torch.equal(buffer, before[name]) != training for name, buffer in a.named_buffers())


@pytest.mark.parametrize("tokens", BAGS)
@pytest.mark.parametrize("heads", [1, 12])
def test_attentive_probing_of_cae(heads, tokens):
    a = make("ap", heads=heads, form="cae", tokens=tokens)
    query, keys, values = a.norm_query(a.query.expand(B, 1, D)), a.norm_key(BAGS[tokens]), a.norm_value(BAGS[tokens])
    vector, weights = attention(a.by_query(query), a.key(keys), a.value(values), heads)
    check(a, a.proj(vector), weights)


@pytest.mark.parametrize(("options", "held"), [({}, "query"), ({"queries": 1}, "queries")], ids=["ap", "ep"])
def test_lars_scales_a_learned_query_by_its_norm(options, held):
    """As its authors' [1, 1, D]: one step at rate 6.4 moves it by 0.0064 of its norm."""
    heads = [HeadSpec("ep" if options else "ap", options).build(D, T, 3, seed=seed).double() for seed in range(2)]
    stack, labels = Stack(heads), torch.arange(B)
    parameter = stack.parameters[f"aggregator.{held}"]
    before = parameter.detach().clone()
    sum(nn.functional.cross_entropy(logits, labels) for logits in stack({"patch": PATCH}, training=True)[0]).backward()
    LARS(stack.parameters, torch.zeros(2, dtype=torch.float64), 0.9).step(torch.full((2,), 6.4, dtype=torch.float64))
    for m, head in enumerate(heads):
        query = head.aggregator.get_parameter(held)
        nn.functional.cross_entropy(head.train()({"patch": PATCH})[0], labels).backward()
        step = -6.4 * 0.001 * query.norm() * query.grad / query.grad.norm()
        torch.testing.assert_close(parameter[m] - before[m], step.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("queries", "divide", "tokens"), [(4, 1, "patch"), (6, 2, "patch"), (24, 1, "patch"), (4, 1, "all"), (6, 2, "all")]
)
def test_efficient_probing(queries, divide, tokens):
    a, x = make("ep", queries=queries, divide=divide, tokens=tokens), BAGS[tokens]
    weights = torch.einsum("qd,btd->bqt", a.queries, x).div(D**0.5).softmax(-1)
    values = a.value(x).unflatten(-1, (queries, -1))  # [B, T, Q, W / Q]
    check(a, torch.einsum("bqt,btqw->bqw", weights, values), weights.mean(1))


def test_simpool():
    a = make("simpool")
    x = layer_norm(PATCH, (D,), a.norm.weight, a.norm.bias, 1e-6)
    check(a, *attention(a.query(PATCH.mean(1, keepdim=True)), a.key(x), x, 1))


@pytest.mark.parametrize(("heads", "ratio"), [(12, 4), (1, 2)])
def test_v_jepa(heads, ratio):
    a = make("v-jepa", heads=heads, ratio=ratio)
    x = layer_norm(PATCH, (D,), a.norm1.weight, a.norm1.bias, 1e-5)
    token = a.token.expand(B, 1, D)
    attended, weights = attention(a.query(token), *a.keys_values(x).chunk(2, -1), heads)
    check(a, mlp(a, token + a.proj(attended), a.norm2), weights)


@pytest.mark.parametrize(("heads", "ratio", "depth"), [(12, 4, 3), (1, 2, 1)])
def test_v_jepa_2(heads, ratio, depth):
    a, x = make("v-jepa-2", heads=heads, ratio=ratio, depth=depth), PATCH
    for block in a.blocks:
        normalised = layer_norm(x, (D,), block.norm1.weight, block.norm1.bias, 1e-5)
        x = mlp(block, x + block.proj(attention(*block.qkv(normalised).chunk(3, -1), heads)[0]), block.norm2)
    x = layer_norm(x, (D,), a.norm1.weight, a.norm1.bias, 1e-5)
    token = a.token.expand(B, 1, D)
    attended, weights = attention(a.query(token), *a.keys_values(x).chunk(2, -1), heads)
    check(a, mlp(a, token + attended, a.norm2), weights)


OF_BLOCKS = {f"blocks.{i}.{layer}.weight": 0.02 / (2 * i + 2) ** 0.5 for i in range(3) for layer in ("proj", "fc2")}
STARTS = [
    ("ap", {}, {"query": 0.02, "key.weight": None, "value.weight": None}),
    ("ap", {"form": "cae"}, {"query": 0, **{f"{layer}.weight": 0.02 for layer in ("by_query", "key", "value", "proj")}}),
    ("ep", {}, {"queries": 0.02, "value.weight": None}),
    ("v-jepa", {}, {"token": 0.02, "query.bias": 0, "fc2.bias": 0, "proj.weight": 0.02 / 2**0.5, "fc2.weight": 0.02 / 2**0.5}),
    (
        "v-jepa-2",
        {},
        {"token": 0.02, "fc1.weight": 0.02, "blocks.2.qkv.weight": 0.02, "fc2.weight": 0.02 / 6**0.5, **OF_BLOCKS},
    ),
]


@pytest.mark.parametrize(("name", "options", "deviations"), STARTS, ids=["ap", "cae", "ep", "v-jepa", "v-jepa-2"])
def test_published_initialisations(name, options, deviations):
    """The standard deviation of what parameters are drawn from; None: torch's own, uniform within 1 / √D."""
    torch.manual_seed(0)
    aggregator = make_aggregator(name, 768, **options)
    for parameter, deviation in deviations.items():
        values = aggregator.get_parameter(parameter)
        if deviation is None:
            assert values.abs().max().item() == pytest.approx(768**-0.5, rel=1e-3)
        else:
            rel = 0.02 if values.numel() > 10**5 else 0.1
            assert values.std(correction=0).item() == pytest.approx(deviation, rel=rel), parameter
