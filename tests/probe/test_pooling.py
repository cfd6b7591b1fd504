"""Softmax pooling by many queries, against the formula and its automatic gradients."""

import pytest
import torch
from torch import Tensor

from probe import pooling
from probe.pooling import softmax_pool
from store.codecs import CODECS
from store.codecs.codec import Coded

B, T, D, Q, M = 5, 7, 6, 3, 4
Shape = tuple[int, ...]


def explicit(tokens: Tensor, queries: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    logits = torch.einsum("bqd,btd->bqt", queries.expand(len(tokens), *queries.shape[-2:]), tokens)
    weights = (logits if bias is None else logits + bias).softmax(-1)
    return torch.einsum("bqt,btd->bqd", weights, tokens), weights


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=[2 * T * D * 8, 1 << 30], ids=["two", "all"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "PIECE_NBYTES", request.param)


def check(shapes: list[Shape | None], in_dims: tuple[int | None, ...] | None = None) -> None:
    """Values and gradients, of members where `in_dims` says on which axes they are."""
    inputs, results = [draw(*shape, seed=i) if shape else None for i, shape in enumerate(shapes)], []
    for pool in (softmax_pool, explicit):
        leaves = [None if values is None else values.clone().requires_grad_() for values in inputs]
        pooled = (pool if in_dims is None else torch.vmap(pool, in_dims=in_dims))(*leaves)
        sum((x * draw(*x.shape, seed=5 + i)).sum() for i, x in enumerate(pooled)).backward()
        results.append([*pooled, *(leaf.grad for leaf in leaves if leaf is not None)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


QUERIES = pytest.mark.parametrize("query_shape", [(Q, D), (B, Q, D)], ids=str)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("bias_shape", [None, (Q, 1), (T,), (Q, T), (B, 1, T), (B, Q, T)], ids=str)
@QUERIES
def test_values_and_gradients(query_shape: Shape, bias_shape: Shape | None) -> None:
    check([(B, T, D), query_shape, bias_shape])


# Shapes of tokens, queries and bias, and their axes of members.
CASES: list[tuple[Shape, Shape, Shape | None, tuple[int | None, ...]]] = [
    ((B, T, D), (M, Q, D), None, (None, 0, None)),
    ((B, T, D), (M, Q, D), (M, Q, 1), (None, 0, 0)),
    ((B, T, D), (M, Q, D), (M, B, 1, T), (None, 0, 0)),
    ((B, T, D), (M, Q, D), (Q, T), (None, 0, None)),
    ((B, T, D), (M, B, Q, D), (M, Q, T), (None, 0, 0)),
    ((B, T, D), (Q, D), (M, T), (None, None, 0)),
    ((M, B, T, D), (M, Q, D), (M, Q, 1), (0, 0, 0)),
    ((M, B, T, D), (M, B, Q, D), None, (0, 0, None)),
    ((M, B, T, D), (Q, D), None, (0, None, None)),
    ((B, M, T, D), (Q, M, D), (T, M), (1, 1, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_members_under_vmap(case: tuple[Shape, Shape, Shape | None, tuple[int | None, ...]]) -> None:
    *shapes, in_dims = case
    check(shapes, in_dims)


def test_members_read_the_tokens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    pieces = pooling._image_slices
    monkeypatch.setattr(pooling, "_image_slices", lambda tokens, dtype: calls.append(tokens.shape) or pieces(tokens, dtype))
    tokens = draw(B, T, D)
    torch.vmap(lambda queries: softmax_pool(tokens, queries)[0])(draw(M, Q, D, seed=1))
    assert calls == [(B, T, D)]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("stored", [torch.float16, "bfloat16", "int4"], ids=str)
@QUERIES
def test_stored_tokens_are_decoded_in_pieces(
    stored: torch.dtype | str, query_shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits, forward and backward."""
    tokens, results, decoded, decode = draw(B, T, D), [], [], Coded.decoded
    given = (
        tokens.to(stored) if isinstance(stored, torch.dtype) else Coded(CODECS[stored], CODECS[stored].encode(tokens.float()))
    )
    numbers = given.decoded().clone() if isinstance(given, Coded) else given.double()
    monkeypatch.setattr(Coded, "decoded", lambda tokens, images: decoded.append(images) or decode(tokens, images))
    for x in (given, numbers):
        queries = draw(*query_shape, seed=1).requires_grad_()
        vectors, weights = softmax_pool(x, queries, draw(Q, T, seed=2))
        vectors.square().sum().backward()
        results.append((vectors, weights, queries.grad))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    if isinstance(given, Coded):
        begins = [images.start for images in decoded]
        assert begins == 2 * list(range(0, B, begins[1] or B))
