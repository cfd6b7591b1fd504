"""What a forward pass of an encoder costs, counted from shapes alone."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

ITEMSIZE = 2  # of bfloat16 and float16


@dataclass(frozen=True)
class Cost:
    """Of the forward pass of one image.

    Attributes:
        flops: floating-point operations, a multiplication and an addition counting as two. Matrix products and convolutions
            count, those of attention included; no norm, softmax or activation does.
        moved_nbytes: bytes of activations in 16 bits that operations read from the device's memory and write to it, each
            operation by itself, attention fused.
        weights_nbytes: bytes of all weights in 16 bits, which every batch reads once.
    """

    flops: int
    moved_nbytes: int
    weights_nbytes: int


def cost_of(model: nn.Module, input_size: tuple[int, int, int]) -> Cost | None:
    """The cost of one image. Nothing is computed: tensors are on torch's meta device, which has shapes only.

    Args:
        input_size: channels, height and width of an image.

    Returns:
        None for a model whose steps depend on values.
    """
    tensors = [*model.parameters(), *model.buffers()]
    try:
        shadow = copy.deepcopy(model, {id(t): t.detach().to("meta") for t in tensors}).eval()  # takes no memory for weights
        weights = {id(t) for t in (*shadow.parameters(), *shadow.buffers())}
        image = torch.zeros(1, *input_size, device="meta")
        with torch.no_grad(), FlopCounterMode(display=False) as operations, _Moved(weights) as moved, _FusedAttention(moved):
            shadow.forward_features(image)  # type: ignore[operator]
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    in_weights = sum(p.numel() for p in shadow.parameters())
    return Cost(operations.get_total_flops(), ITEMSIZE * moved.numel, ITEMSIZE * in_weights)


class _Moved(TorchDispatchMode):
    """Counts numbers that operations read and write, except for weights. A view moves none."""

    def __init__(self, weights: set[int]):
        super().__init__()
        self.numel, self.is_paused, self._weights = 0, False, weights

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not (self.is_paused or func.is_view or func is torch.ops.aten._unsafe_view.default):
            self.count(args, kwargs, out)
        return out

    def count(self, *values: Any) -> None:
        """Count all tensors among these."""
        for t in tree_leaves(values):
            if isinstance(t, Tensor) and id(t) not in self._weights and id(t._base) not in self._weights:
                self.numel += t.numel()


class _FusedAttention(TorchFunctionMode):
    """Attention as kernels compute it that keep logits on the chip: queries, keys, values and any bias in, vectors out."""

    def __init__(self, moved: _Moved):
        super().__init__()
        self._moved = moved

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_attention = func is F.scaled_dot_product_attention
        self._moved.is_paused |= is_attention
        out = func(*args, **(kwargs or {}))
        if is_attention:
            # Kernels write in the order in which heads are joined, so that joining them moves nothing.
            out = out.transpose(1, 2).contiguous().transpose(1, 2)
            self._moved.is_paused = False
            self._moved.count(args, kwargs, out)
        return out
