"""Softmax pooling by Triton's kernels: interpreted, against float64; on a GPU, against PyTorch."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.grid import HeadSpec
from probe.pooling import softmax_pool
from probe.recipe import Recipe
from probe.stack import Stack
from store import kernels
from store.codecs import CODECS
from store.codecs.codec import Coded
from tests.kernels.fake import Launches
from tests.probe.test_pooling import explicit
from tests.probe.training import Images, family, member, trained

pytest.importorskip("triton")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a CUDA device")


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Tensors on the CPU take the way of a GPU, with its kernels interpreted; gives the names of those that ran."""
    from triton.language import float32
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from probe import pooling_kernels

    multiply = InterpreterBuilder.create_dot

    def multiply_bfloat16(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        """The interpreter multiplies the bits of bfloat16 as if they were whole numbers."""
        a, b = (
            TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), float32) if str(x.dtype) == "bf16" else x
            for x in (a, b)
        )
        return multiply(self, a, b, *rest)

    ran: list[str] = []
    for name in ("pool", "pool_backward"):
        kernel = getattr(pooling_kernels, name)
        watched = type("Watched", (), {"__getitem__": lambda _, grid, k=kernel, n=name: (ran.append(n), k[grid])[1]})()
        monkeypatch.setattr(pooling_kernels, name, watched)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", multiply_bfloat16)
    monkeypatch.setattr(kernels, "apply_to", lambda _: True)
    yield ran
    assert ran


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def results(
    pool: Callable[..., tuple[Tensor, Tensor]],
    inputs: list[Tensor],
    gradients: list[Tensor],
    wanted: tuple[bool, ...] = (False, True, True),
) -> list[Tensor]:
    """Vectors and weights, and gradients of those inputs of which they are wanted."""
    leaves = [values.clone().requires_grad_(want) for values, want in zip(inputs, wanted, strict=False)]
    outcome = pool(*leaves)
    sum((x * g).sum() for x, g in zip(outcome, gradients, strict=False)).backward()  # type: ignore[union-attr]
    return [*(x.detach() for x in outcome), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def error(ours: Tensor, exact: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    assert ours.shape == exact.shape
    return float((ours.double() - exact.double()).abs().max() / exact.abs().max().clamp(min=1e-300))


# Images, tokens, channels, queries; whether all images share these; shape of the bias; dtype of the tokens.
Case = tuple[int, int, int, int, bool, tuple[int, ...] | None, torch.dtype]
CASES: dict[str, Case] = {
    "one query": (3, 5, 8, 1, True, None, torch.float16),
    "ragged": (2, 67, 70, 3, True, (3, 67), torch.float16),
    "many queries": (5, 33, 24, 70, True, (70, 33), torch.bfloat16),
    "of each image": (3, 65, 130, 5, False, (3, 1, 65), torch.float32),
    "float32": (4, 34, 65, 17, True, (34,), torch.float32),
}


@interpreted
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_as_exact_as_float32(case: Case, kernels_on_cpu: list[str]) -> None:
    b, t, d, q, shared, bias, dtype = case
    inputs = [draw(b, t, d, dtype=dtype), draw(*(() if shared else (b,)), q, d, seed=1) * d**-0.5 * 3]
    inputs += [] if bias is None else [draw(*bias, seed=2)]
    gradients = [draw(b, q, d, seed=3) * 1e-6, draw(b, q, t, seed=4) * 1e-6]
    exact = results(explicit, [x.double() for x in inputs], [g.double() for g in gradients])
    for ours, expected in zip(results(softmax_pool, inputs, gradients), exact, strict=True):
        assert error(ours, expected) < 3e-6
    assert kernels_on_cpu == ["pool", "pool_backward"]


@interpreted
@pytest.mark.parametrize(("codec", "dim"), [("bfloat16", 70), ("float8_e4m3", 128), ("int8", 70), ("int4", 70), ("int4", 128)])
def test_tokens_as_they_are_stored(codec: str, dim: int, kernels_on_cpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """70 channels end within a slice, and int4 has scales of 2 of them, which no kernel takes; of 128 there are two groups."""
    coded = Coded(CODECS[codec], CODECS[codec].encode(draw(3, 67, dim)))
    inputs, gradients = [draw(3, dim, seed=1) * dim**-0.5], [draw(3, 3, dim, seed=3), draw(3, 3, 67, seed=4)]
    exact = results(partial(explicit, coded.decoded().double()), [x.double() for x in inputs], gradients, (True,))
    if codec != "float8_e4m3" and (codec, dim) != ("int4", 70):
        monkeypatch.setattr(Coded, "decoded", None)  # in registers alone
    for ours, expected in zip(results(partial(softmax_pool, coded), inputs, gradients, (True,)), exact, strict=True):
        assert error(ours, expected) < 3e-6
    assert kernels_on_cpu == ["pool", "pool_backward"]


@interpreted
@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("wanted", [(True, False, False), (True, True, True)], ids=["tokens", "all"])
def test_gradients_of_tokens(wanted: tuple[bool, ...]) -> None:
    inputs = [draw(2, 9, 16), draw(3, 16, seed=1), draw(3, 9, seed=2)]
    gradients = [draw(2, 3, 16, seed=3), draw(2, 3, 9, seed=4)]
    exact = results(explicit, [x.double() for x in inputs], [g.double() for g in gradients], wanted)
    for ours, expected in zip(results(softmax_pool, inputs, gradients, wanted), exact, strict=True):
        assert error(ours, expected) < 3e-6


@interpreted
@pytest.mark.usefixtures("kernels_on_cpu")
def test_gradients_of_weights_alone() -> None:
    gradients = []
    for pool, dtype in ((softmax_pool, torch.float32), (explicit, torch.float64)):
        queries = draw(3, 16, seed=1).to(dtype).requires_grad_()
        pool(draw(2, 9, 16).to(dtype), queries)[1].square().sum().backward()
        gradients.append(queries.grad)
    assert error(*gradients) < 3e-6  # type: ignore[arg-type]


@interpreted
@pytest.mark.usefixtures("kernels_on_cpu")
def test_a_program_sums_over_images_of_any_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five images in groups of two, of which the second has the larger gradients, or the smaller ones."""
    monkeypatch.setattr("probe.pooling_on_gpu.PROGRAMS", 3)
    inputs = [draw(5, 70, 16, dtype=torch.float16), draw(3, 16, seed=1)]
    scales = torch.tensor([1.0, 1e6, 1e3, 1e-3, 1e9])[:, None, None]
    gradients = [draw(5, 3, 16, seed=3) * scales, torch.zeros(5, 3, 70)]
    exact = results(explicit, [x.double() for x in inputs], [g.double() for g in gradients])
    assert error(results(softmax_pool, inputs, gradients)[2], exact[2]) < 3e-6


@interpreted
@pytest.mark.usefixtures("kernels_on_cpu")
def test_extreme_scores() -> None:
    """Scores of ± 10,000, queries and gradients far outside float16, and tokens that a bias leaves out."""
    tokens, queries = draw(2, 70, 16, dtype=torch.float16), draw(4, 16, seed=1)
    queries = queries * torch.tensor([3e3, 1e-9, 1.0, 0.0])[:, None]
    bias = torch.zeros(4, 70)
    bias[2, :66] = -torch.inf  # all of the first tile
    bias[3, 0] = 1e5
    gradients = [draw(2, 4, 16, seed=3) * torch.tensor([1e-12, 1e9, 1.0, 1e-3])[:, None], torch.zeros(2, 4, 70)]
    exact = results(explicit, [x.double() for x in (tokens, queries, bias)], [g.double() for g in gradients])
    ours = results(softmax_pool, [tokens, queries, bias], gradients)
    assert torch.equal(ours[1][:, 2, :66], torch.zeros(2, 66))
    for m in range(4):  # by query: each has a size of its own
        for i, axis in ((0, 1), (1, 1), (2, 0)):
            if i < 2 or m in (1, 2):  # of weights that are 1 and 0 the gradient is what rounding leaves of 0
                assert error(ours[i].select(axis, m), exact[i].select(axis, m)) < (2e-3 if m == 0 else 3e-6), (m, i)


@interpreted
@pytest.mark.usefixtures("kernels_on_cpu")
def test_what_is_not_finite_is_not_hidden() -> None:
    tokens = draw(2, 40, 16)
    tokens[0, 35, 3] = torch.nan
    vectors, weights = softmax_pool(tokens, draw(2, 16, seed=1), torch.full((40,), -torch.inf))
    assert vectors.isnan().all()  # no token is left, as in torch.softmax
    vectors, weights = softmax_pool(tokens, draw(2, 16, seed=1))
    assert vectors[0].isnan().any()
    assert weights[0].isnan().all()
    assert vectors[1].isfinite().all()


def test_they_are_launched_where_their_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches(monkeypatch)
    for name in ("pool", "pool_backward"):
        monkeypatch.setattr(f"probe.pooling_kernels.{name}", launches)
    monkeypatch.setattr(kernels, "apply_to", lambda _: True)
    results(softmax_pool, [draw(2, 9, 16), draw(3, 16, seed=1)], [draw(2, 3, 16), draw(2, 3, 9)])
    assert [one is not None and one.shape for one in launches.guarded_by] == [(2, 9, 16)] * 2


@interpreted
def test_members_come_to_one_kernel(kernels_on_cpu: list[str]) -> None:
    tokens = draw(2, 9, 16)
    torch.vmap(lambda queries: softmax_pool(tokens, queries)[0])(draw(4, 3, 16, seed=1))
    assert kernels_on_cpu == ["pool"]


@interpreted
def test_a_grid_trains_to_the_same_losses(kernels_on_cpu: list[str]) -> None:
    grid, recipe = [member(seed) for seed in range(3)], Recipe(epochs=1, batch_size=16, warmup_epochs=0)
    losses = []
    for way in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if not way:
                patch.setattr(kernels, "apply_to", lambda _: False)
            [one] = trained([family(grid, dtype=torch.float32)], recipe, Images(48, dtype=torch.float32))
        losses.append([curve[-1]["loss"] for curve in one.curves])
    assert kernels_on_cpu.count("pool_backward") == 3  # one for each batch
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@interpreted
@pytest.mark.parametrize(
    ("tokens", "queries"),
    [
        (draw(1, 3, 1537), draw(2, 1537)),
        (draw(1, 3, 8).double(), draw(2, 8).double()),
        (torch.empty(0, 3, 8), draw(2, 8)),
        (draw(1, 3, 8), torch.empty(0, 8)),
    ],
    ids=["wide", "float64", "no image", "no query"],
)
def test_the_rest_is_left_to_pytorch(tokens: Tensor, queries: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = softmax_pool(tokens, queries)
    monkeypatch.setattr(kernels, "apply_to", lambda _: True)
    monkeypatch.setattr("probe.pooling_kernels.pool", None)
    for ours, theirs in zip(softmax_pool(tokens, queries), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_a_gpu_as_pytorch(case: Case) -> None:
    """Both are compared with float64, and the kernels give the same bits each time."""
    b, t, d, q, shared, bias, dtype = case
    b, t, d = 4 * b, 3 * t, 8 * d
    inputs = [draw(b, t, d, dtype=dtype), draw(*(() if shared else (b,)), q, d, seed=1) * d**-0.5 * 3]
    inputs += [] if bias is None else [draw(*(bias[:-1] if len(bias) < 3 else (b, 1)), t, seed=2)]
    gradients = [draw(b, q, d, seed=3) * 1e-6, draw(b, q, t, seed=4) * 1e-6]
    inputs, gradients = ([x.cuda() for x in tensors] for tensors in (inputs, gradients))
    exact = results(explicit, [x.double() for x in inputs], [g.double() for g in gradients])
    ours = results(softmax_pool, inputs, gradients)
    again = results(softmax_pool, inputs, gradients)
    with patch.dict(os.environ, {kernels.SWITCH: "0"}):
        theirs = results(softmax_pool, inputs, gradients)
    for one, two, other, expected in zip(ours, again, theirs, exact, strict=True):
        assert torch.equal(one, two)
        assert error(one, expected) < max(6e-6, 8 * error(other, expected))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("name", ["abmilp", "ep"])
def test_on_a_gpu_an_epoch_gives_the_same_losses(name: str) -> None:
    grid, recipe = [member(seed, head=name) for seed in range(3)], Recipe(epochs=1, batch_size=16, warmup_epochs=0)
    losses = []
    for is_off in (False, True):
        images = Images(48, dtype=torch.float32)
        images.tokens, images.labels = {k: v.cuda() for k, v in images.tokens.items()}, images.labels.cuda()
        one = family(grid, HeadSpec(name, {"queries": 4} if name == "ep" else {}), dtype=torch.float32)
        one.stack = Stack([one.stack.head(m) for m in range(len(grid))], "cuda")
        one.base_lr, one.weight_decay = one.base_lr.cuda(), one.weight_decay.cuda()
        with patch.dict(os.environ, {kernels.SWITCH: "0"} if is_off else {}):
            trained([one], recipe, images)
        losses.append([curve[-1]["loss"] for curve in one.curves])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
