"""The kernels of softmax pooling as they are launched for common encoders, for `tests.kernels.compiling`."""

from typing import Any

import torch

from probe import pooling_kernels
from probe.pooling_on_gpu import blocks
from tests.kernels.compiling import Case

# Of tokens, of their scales, and channels that share one, where there are any.
POINTERS = {
    torch.float16: ("*fp16", "*fp32", None),
    torch.bfloat16: ("*bf16", "*fp32", None),
    torch.float32: ("*fp32", "*fp32", None),
    torch.int8: ("*i8", "*fp32", None),
    torch.uint8: ("*u8", "*fp16", 64),  # int4
}
FORWARD = dict.fromkeys(("queries", "bias", "vectors", "weights"), "*fp32") | dict.fromkeys(
    ("n_tokens", "n_queries", "queries_by_image", "bias_by_image", "bias_by_query", "bias_by_token"), "i32"
)
BACKWARD = dict.fromkeys(
    ("vectors", "weights", "of_vectors", "of_weights", "of_queries", "of_scores"), "*fp32"
) | dict.fromkeys(("n_images", "n_tokens", "n_queries", "group"), "i32")


def cases() -> list[Case]:
    """Forward and backward of the default dtype, and those that need most: bfloat16, which is split in three, and float32."""
    return [
        _forward("float16, ViT-B", 768, torch.float16),
        _backward("float16, ViT-B", 768, torch.float16),
        _forward("bfloat16, ViT-S", 384, torch.bfloat16),
        _backward("float32, ViT-S", 384, torch.float32),
        _backward("int8, ViT-B", 768, torch.int8),
        _forward("int4, ViT-B", 768, torch.uint8),
        _backward("int4, ViT-B", 768, torch.uint8),
    ]


def _forward(name: str, dim: int, dtype: torch.dtype) -> Case:
    return _case(f"forward, {name}", pooling_kernels.pool, FORWARD, {"HAS_BIAS": True}, dim, dtype)


def _backward(name: str, dim: int, dtype: torch.dtype) -> Case:
    flags = {"OF_WEIGHTS": True, "OF_SCORES": True}
    return _case(f"backward, {name}", pooling_kernels.pool_backward, BACKWARD, flags, dim, dtype)


def _case(name: str, kernel: Any, types: dict[str, str], flags: dict[str, bool], dim: int, dtype: torch.dtype) -> Case:
    sizes = blocks(dim, dtype)
    options = {"num_warps": sizes.pop("num_warps")}
    tokens, scales, group = POINTERS[dtype]
    constants = {"DIM": dim, "GROUP": group or dim, **sizes, **flags}
    return Case(name, kernel, {"tokens": tokens, "scales": scales, **types}, constants, options)
