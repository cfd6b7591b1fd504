"""Softmax pooling by many queries at once: what all attention-like aggregators have in common."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from store import kernels, onednn
from store.codecs.codec import Coded

PIECE_NBYTES = 2 << 20  # of tokens that each CPU thread works on at once: they stay in its cache from the scores to the sum


def softmax_pool(
    tokens: Float[Tensor, "B T D"],
    queries: Float[Tensor, "Q D"] | Float[Tensor, "B Q D"],
    bias: Tensor | None = None,
) -> tuple[Float[Tensor, "B Q D"], Float[Tensor, "B Q T"]]:
    """Weights softmax_t(q · x_t + bias) of each query over the tokens, and the weighted sums of the tokens.

    Queries of all members of a grid, of all branches and attention heads, come here together: the tokens, which are nearly
    all of the bytes, are read twice for all of them, forward and backward. Under `torch.vmap` over queries and bias, the
    members' queries are put together in the same way.

    Args:
        tokens: of B images; in 16 bits too, or `Coded`: these become numbers in the dtype of the queries a few images at a
            time, in the cache.
        queries: Q of all images, or of each.
        bias: added to the logits; of a shape that broadcasts to [B, Q, T]. One that is the same for all tokens of an image
            ([…, 1]) cancels: it changes nothing, and its gradient is 0.

    Returns:
        Vectors and weights; each row of weights sums to 1.
    """
    return _SoftmaxPool.apply(tokens, queries, bias)


class _SoftmaxPool(torch.autograd.Function):
    """s = q · x + bias, a = softmax(s), v = Σ a x. Gradients v' and a' give s' = a (v' · x + a' - v' · v - a' · a)."""

    @staticmethod
    def forward(tokens: Tensor, queries: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        n_images, n_tokens, dim = tokens.shape
        n_queries = queries.shape[-2]
        if on_gpu := _gpu_kernels(tokens, queries):
            return on_gpu.softmax_pool(*on_gpu.readable(tokens), queries, None if bias is None or _bias_cancels(bias) else bias)
        vectors, weights = queries.new_empty(n_images, n_queries, dim), queries.new_empty(n_images, n_queries, n_tokens)
        added = None if bias is None or _bias_cancels(bias) else bias.expand(n_images, n_queries, n_tokens)
        by_onednn = _uses_onednn(queries)
        for images, x in _image_slices(tokens, queries.dtype):
            if by_onednn:
                logits = onednn.linear(queries, x.flatten(0, 1)).view(n_queries, -1, n_tokens).transpose(0, 1)
            else:
                logits = torch.matmul(_queries_of(queries, images), x.mT)
            if added is not None:
                logits += added[images]
            torch.softmax(logits, -1, out=weights[images])
            torch.bmm(weights[images], x, out=vectors[images])
        return vectors, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: tuple[Tensor, Tensor]) -> None:
        tokens, queries, bias = inputs
        ctx.save_for_backward(tokens, queries, *output)
        ctx.bias_shape, ctx.cancels = (None, True) if bias is None else (bias.shape, _bias_cancels(bias))
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_vectors: Tensor | None, of_weights: Tensor | None) -> tuple[Tensor | None, ...]:
        tokens, queries, vectors, weights = ctx.saved_tensors
        if of_vectors is None:
            of_vectors = torch.zeros_like(vectors)
        if on_gpu := _gpu_kernels(tokens, queries):
            wants_bias = ctx.needs_input_grad[2] and not ctx.cancels
            options = queries.ndim == 2, ctx.needs_input_grad[0] or wants_bias
            of_queries, scores = on_gpu.softmax_pool_backward(
                *on_gpu.readable(tokens), vectors, weights, of_vectors, of_weights, *options
            )
            of_tokens = None
            if ctx.needs_input_grad[0]:  # by PyTorch's products, from those of the scores
                of_tokens = (torch.matmul(scores.mT, queries) + torch.bmm(weights.mT, of_vectors)).to(tokens.dtype)
            of_bias = _bias_gradient(ctx, scores if wants_bias else None)
            return of_tokens, of_queries if ctx.needs_input_grad[1] else None, of_bias
        of_tokens = torch.empty_like(tokens) if ctx.needs_input_grad[0] else None
        of_queries = torch.zeros_like(queries) if ctx.needs_input_grad[1] else None
        of_bias = torch.empty_like(weights) if ctx.needs_input_grad[2] and not ctx.cancels else None
        by_onednn = _uses_onednn(queries)
        for images, x in _image_slices(tokens, queries.dtype):
            scores = torch.bmm(of_vectors[images], x.mT)
            scores -= (of_vectors[images] * vectors[images]).sum(-1, keepdim=True)
            if of_weights is not None:
                scores += of_weights[images] - (of_weights[images] * weights[images]).sum(-1, keepdim=True)
            scores *= weights[images]
            if of_queries is not None:
                if by_onednn:
                    of_queries += onednn.linear(scores.transpose(0, 1).flatten(1), x.flatten(0, 1).mT)
                elif queries.ndim == 2:
                    of_queries += torch.bmm(scores, x).sum(0)
                else:
                    of_queries[images] = torch.bmm(scores, x)
            if of_bias is not None:
                of_bias[images] = scores
            if of_tokens is not None:
                of_tokens[images] = torch.matmul(scores.mT, _queries_of(queries, images)) + torch.bmm(
                    weights[images].mT, of_vectors[images]
                )
        return of_tokens, of_queries, _bias_gradient(ctx, of_bias)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], tokens: Tensor, queries: Tensor, bias: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Members' queries side by side; where tokens are batched too, each pair (member, image) becomes an image."""
        n = info.batch_size
        tokens, queries = (
            v if dim is None else v.movedim(dim, 0) for v, dim in zip((tokens, queries), in_dims[:2], strict=True)
        )
        bias = bias if bias is None or in_dims[2] is None else bias.movedim(in_dims[2], 0)
        tokens_batched, queries_batched, bias_batched = (dim is not None for dim in in_dims)
        n_images, n_tokens, dim = tokens.shape[-3:]
        n_queries = queries.shape[-2]
        if bias is not None:
            bias = bias if bias_batched else bias.expand(n, *bias.shape)
            bias = bias.view(n, *(1,) * (4 - bias.ndim), *bias.shape[1:]).expand(n, n_images, n_queries, -1)
        if tokens_batched:
            if queries.ndim - queries_batched == 2:
                queries = queries.unsqueeze(-3)
            queries = queries.expand(n, n_images, n_queries, dim).reshape(-1, n_queries, dim)
            bias = None if bias is None else bias.flatten(0, 1)
            pooled = softmax_pool(tokens.reshape(-1, n_tokens, dim), queries, bias)
            vectors, weights = (values.unflatten(0, (n, n_images)) for values in pooled)
            return (vectors, weights), (0, 0)
        queries = queries if queries_batched else queries.expand(n, *queries.shape)
        all_queries = queries.flatten(0, 1) if queries.ndim == 3 else queries.transpose(0, 1).flatten(1, 2)
        bias = None if bias is None else bias.transpose(0, 1).flatten(1, 2)
        vectors, weights = (values.unflatten(1, (n, n_queries)) for values in softmax_pool(tokens, all_queries, bias))
        return (vectors, weights), (1, 1)


def reads_stored(device: torch.device) -> bool:
    """Whether tokens are best left as they are stored until they are pooled; elsewhere they would be decoded twice."""
    return device.type == "cpu" or kernels.apply_to(torch.empty(0, device=device))


def _gpu_kernels(tokens: Tensor, queries: Tensor) -> ModuleType | None:
    """The kernels, where they compute this; imported only there, as Triton may be missing elsewhere."""
    if not kernels.apply_to(tokens):
        return None
    from probe import pooling_on_gpu

    return pooling_on_gpu if pooling_on_gpu.applies(tokens, queries) else None


def _bias_gradient(ctx: Any, of_scores: Tensor | None) -> Tensor | None:
    """The bias's gradient, from that of the scores [B, Q, T]; None stands for a bias that cancels."""
    if not ctx.needs_input_grad[2]:
        return None
    weights = ctx.saved_tensors[3]
    return weights.new_zeros(ctx.bias_shape) if of_scores is None else of_scores.sum_to_size(ctx.bias_shape)


def _image_slices(tokens: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the images that are computed at once, in this dtype: on a CPU as many as its caches hold, elsewhere all."""
    on_cpu = tokens.device.type == "cpu"
    image_nbytes = tokens.shape[1:].numel() * dtype.itemsize
    step = max(1, PIECE_NBYTES * torch.get_num_threads() // max(1, image_nbytes) if on_cpu else len(tokens))
    if isinstance(tokens, Coded):
        for begin in range(0, len(tokens), step):
            yield (images := slice(begin, begin + step)), tokens.decoded(images).to(dtype)
        return
    wide = tokens.new_empty(min(step, len(tokens)), *tokens.shape[1:], dtype=dtype) if tokens.dtype != dtype else None
    for begin in range(0, len(tokens), step):
        images = slice(begin, begin + step)
        yield images, tokens[images] if wide is None else wide[: len(tokens[images])].copy_(tokens[images])


def _bias_cancels(bias: Tensor) -> bool:
    """Whether a bias has no effect on the softmax over the tokens."""
    return bias.ndim == 0 or bias.shape[-1] == 1


def _uses_onednn(queries: Tensor) -> bool:
    """Whether queries are the same for all images, and enough for oneDNN to be faster at the plain matrix products."""
    return queries.ndim == 2 and len(queries) >= 8 and onednn.applies(queries, queries) and onednn.is_faster()


def _queries_of(queries: Tensor, images: slice) -> Tensor:
    return queries if queries.ndim == 2 else queries[images]
