"""Softmax pooling by many queries, against the formula and its automatic gradients."""

import pytest
import torch
from torch import Tensor

from probe import pooling
from probe.pooling import softmax_pool
from store.codecs import CODECS
from store.codecs.codec import Coded

B, T, D, Q, M = 5, 7, 6, 3, 4


def explicit(tokens: Tensor, queries: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    logits = torch.einsum("bqd,btd->bqt", queries.expand(len(tokens), *queries.shape[-2:]), tokens)
    weights = (logits if bias is None else logits + bias).softmax(-1)
    return torch.einsum("bqt,btd->bqd", weights, tokens), weights


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=[1, 2 * T * D * 8, 1 << 30], ids=["one", "two", "all"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "PIECE_NBYTES", request.param)


QUERIES = [(Q, D), (B, Q, D)]
BIASES: list[tuple[int, ...] | None] = [None, (Q, 1), (T,), (Q, T), (B, 1, T), (B, Q, T)]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("bias_shape", BIASES, ids=str)
@pytest.mark.parametrize("query_shape", QUERIES, ids=str)
def test_values_and_gradients(query_shape: tuple[int, ...], bias_shape: tuple[int, ...] | None) -> None:
    inputs = [draw(B, T, D), draw(*query_shape, seed=1), *([draw(*bias_shape, seed=2)] if bias_shape else [])]
    results = []
    for pool in (softmax_pool, explicit):
        leaves = [values.clone().requires_grad_() for values in inputs]
        vectors, weights = pool(*leaves)
        (vectors * draw(B, Q, D, seed=3)).sum().add((weights * draw(B, Q, T, seed=4)).sum()).backward()
        results.append([vectors, weights, *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_tokens_of_the_store_need_no_gradient() -> None:
    tokens, queries = draw(B, T, D), draw(Q, D, seed=1).requires_grad_()
    before = tokens.clone()
    softmax_pool(tokens, queries)[0].sum().backward()
    assert tokens.grad is None
    assert torch.equal(tokens, before)


# Shapes of tokens, queries and bias, and their axes of members.
Case = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, tuple[int | None, ...]]
CASES: list[Case] = [
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
def test_members_under_vmap(case: Case) -> None:
    *shapes, in_dims = case
    inputs = [draw(*shape, seed=i) if shape else None for i, shape in enumerate(shapes)]
    results = []
    for pool in (softmax_pool, explicit):
        leaves = [None if values is None else values.clone().requires_grad_() for values in inputs]
        vectors, weights = torch.vmap(pool, in_dims=in_dims)(*leaves)
        assert vectors.shape == (M, B, Q, D)
        (vectors * draw(M, B, Q, D, seed=5)).sum().add((weights * draw(M, B, Q, T, seed=6)).sum()).backward()
        results.append([vectors, weights, *(leaf.grad for leaf in leaves if leaf is not None)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_members_read_the_tokens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    pieces = pooling._image_slices
    monkeypatch.setattr(pooling, "_image_slices", lambda tokens, dtype: calls.append(tokens.shape) or pieces(tokens, dtype))
    tokens = draw(B, T, D)
    torch.vmap(lambda queries: softmax_pool(tokens, queries)[0])(draw(M, Q, D, seed=1))
    assert calls == [(B, T, D)]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("query_shape", QUERIES, ids=str)
def test_tokens_in_16_bits_are_widened(dtype: torch.dtype, query_shape: tuple[int, ...]) -> None:
    tokens, results = draw(B, T, D).to(dtype), []
    for given in (tokens, tokens.double()):
        queries = draw(*query_shape, seed=1).requires_grad_()
        vectors, weights = softmax_pool(given, queries, draw(Q, T, seed=2))
        vectors.square().sum().backward()
        results.append((vectors, weights, queries.grad))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("codec", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("query_shape", QUERIES, ids=str)
def test_tokens_that_are_coded_are_decoded_in_pieces(
    codec: str, query_shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits, forward and backward."""
    parts, results, decoded = CODECS[codec].encode(draw(B, T, D).float()), [], []
    decode = Coded.decoded
    for given in (CODECS[codec].decode(parts), Coded(CODECS[codec], parts)):
        monkeypatch.setattr(Coded, "decoded", lambda tokens, images: decoded.append(images) or decode(tokens, images))
        queries = draw(*query_shape, seed=1).requires_grad_()
        vectors, weights = softmax_pool(given, queries, draw(Q, T, seed=2))
        vectors.square().sum().backward()
        results.append((vectors, weights, queries.grad))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    begins = [images.start for images in decoded]
    assert begins == 2 * list(range(0, B, begins[1] or B))
