"""Softmax pooling by the kernels of `pooling_kernels`, as operations of PyTorch that know the shapes they give."""

from typing import Any

import torch
from torch import Tensor

from probe import pooling_kernels as kernels
from store.codecs import SCALE
from store.codecs.codec import Coded
from store.codecs.dtypes import GROUP, BFloat16, Int4, Int8

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DIM = 1536  # the sums of BLOCK_Q queries over more channels than these do not fit the registers of a program
BLOCK_Q = 16  # queries of a program
PROGRAMS = 256  # that share the images of a backward pass: two for each multiprocessor of the larger GPUs


def applies(tokens: Tensor, queries: Tensor) -> bool:
    """Whether the kernels compute this: float32 queries, tokens of up to 1,536 channels in 16 or 32 bits, and some of each."""
    fits = tokens.dtype in DTYPES and queries.dtype == torch.float32 and tokens.shape[-1] <= DIM
    return fits and tokens.numel() > 0 and queries.numel() > 0


def readable(tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Tokens as the kernels read them, and scales of int8 and int4, of each token or group of its channels."""
    if not isinstance(tokens, Coded):
        return tokens, None
    if isinstance(tokens.codec, Int8):
        return tokens.parts[""], tokens.parts[SCALE][..., None]
    if isinstance(tokens.codec, Int4) and tokens.shape[-1] % GROUP == 0:
        return tokens.parts[""], tokens.parts[SCALE]
    return tokens.parts[""] if isinstance(tokens.codec, BFloat16) else tokens.decoded(), None


@torch.library.custom_op("beyondcls::softmax_pool", mutates_args=())
def softmax_pool(tokens: Tensor, scales: Tensor | None, queries: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Vectors [B, Q, D] and weights [B, Q, T] in float32; `bias` of a shape that broadcasts to that of the weights.

    Args:
        tokens, scales: as `readable` gives them.

    Raises:
        ValueError: tensors on several devices.
    """
    vectors, weights = _allocate_results(tokens, scales, queries, bias)
    tokens, queries = tokens.contiguous(), queries.contiguous()
    n_images, n_queries, dim = vectors.shape
    n_tokens = tokens.shape[1]
    added = weights if bias is None else bias.expand_as(weights)
    sizes = blocks(dim, tokens.dtype)
    with torch.cuda.device_of(tokens):
        kernels.pool[(n_images * _ceil(n_queries, BLOCK_Q),)](
            tokens,
            vectors if scales is None else scales.contiguous(),
            queries,
            added,
            vectors,
            weights,
            n_tokens,
            n_queries,
            n_queries * dim if queries.ndim == 3 else 0,
            *added.stride(),
            DIM=dim,
            GROUP=_channels_per_scale(scales, dim),
            HAS_BIAS=bias is not None,
            **sizes,
        )
    return vectors, weights


@torch.library.custom_op("beyondcls::softmax_pool_backward", mutates_args=())
def softmax_pool_backward(
    tokens: Tensor,
    scales: Tensor | None,
    vectors: Tensor,
    weights: Tensor,
    of_vectors: Tensor,
    of_weights: Tensor | None,
    shared: bool,
    wants_scores: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries, [Q, D] where they are shared by all images, else [B, Q, D]; and of the scores [B, Q, T].

    Args:
        vectors, weights: what `softmax_pool` gave; `of_vectors` and `of_weights` are their gradients.
        wants_scores: without it the second result is empty.

    Raises:
        ValueError: tensors on several devices.
    """
    _check_devices(tokens, scales, vectors, weights, of_vectors, of_weights)
    tokens, of_vectors = tokens.contiguous(), of_vectors.contiguous()
    of_weights = None if of_weights is None else of_weights.contiguous()
    n_images, n_queries, dim = vectors.shape
    n_tokens = tokens.shape[1]
    sizes = blocks(dim, tokens.dtype)
    n_blocks = _ceil(n_queries, BLOCK_Q)
    # Each program adds up the images of a group, in their order; then there is little left to be added, in a fixed order too.
    group = _ceil(n_images * n_blocks, PROGRAMS) if shared else 1
    n_groups = _ceil(n_images, group)
    of_groups = vectors.new_empty(n_groups, n_queries, dim)
    of_scores = torch.empty_like(weights) if wants_scores else weights.new_empty(0)
    with torch.cuda.device_of(tokens):
        kernels.pool_backward[(n_groups * n_blocks,)](
            tokens,
            vectors if scales is None else scales.contiguous(),
            vectors,
            weights,
            of_vectors,
            weights if of_weights is None else of_weights,
            of_groups,
            of_scores,
            n_images,
            n_tokens,
            n_queries,
            group,
            DIM=dim,
            GROUP=_channels_per_scale(scales, dim),
            OF_WEIGHTS=of_weights is not None,
            OF_SCORES=wants_scores,
            **sizes,
        )
    return of_groups.sum(0) if shared else of_groups, of_scores


@softmax_pool_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, shared, wants_scores = arguments
    _check_devices(*tensors)
    _, _, vectors, weights, _, _ = tensors
    of_scores = torch.empty_like(weights) if wants_scores else weights.new_empty(0)
    return torch.empty_like(vectors[0] if shared else vectors), of_scores


def blocks(dim: int, dtype: torch.dtype) -> dict[str, int]:
    """Sizes with which the kernels are launched; so the sums and what is read ahead fit the registers."""
    narrow = dtype in (torch.float16, torch.bfloat16)
    return {
        "SLICE": 128 if narrow else 64,  # int4 has scales of as many channels
        "BLOCK_Q": BLOCK_Q,
        "BLOCK_T": 64 if narrow and dim <= DIM // 2 else 32,
        "num_warps": 4 if dim <= 256 else 8,
    }


def _channels_per_scale(scales: Tensor | None, dim: int) -> int:
    """Channels that share a scale."""
    return dim if scales is None else dim // scales.shape[-1]


@softmax_pool.register_fake
def _allocate_results(tokens: Tensor, scales: Tensor | None, queries: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Memory for vectors and weights."""
    _check_devices(tokens, scales, queries, bias)
    (n_images, n_tokens, _), (n_queries, dim) = tokens.shape, queries.shape[-2:]
    return queries.new_empty(n_images, n_queries, dim), queries.new_empty(n_images, n_queries, n_tokens)


def _check_devices(*tensors: Tensor | None) -> None:
    """Pointers into the memory of another device are no error to a compiler."""
    devices = {str(tensor.device) for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        raise ValueError(f"softmax pooling of tensors on {' and '.join(sorted(devices))}, expected one device")


def _ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
