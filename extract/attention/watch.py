"""Seeing the attention of every block during the same forward pass that makes the tokens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from extract.attention.attention import Attention
from extract.attention.layout import TokenLayout
from extract.attention.softmax import attend
from store import BeyondClsError


@contextmanager
def watched(
    blocks: nn.Sequential,
    layout: TokenLayout,
    on_attention: Callable[[int, Attention], None] | None,
    on_branch: Callable[[Tensor, Tensor], None] | None,
) -> Iterator[None]:
    """While active, each block of a forward pass reports its attention.

    However a model computes attention (relative position bias, rotary embedding, normalised queries and keys), in the end it
    calls `scaled_dot_product_attention`; attention is seen in that call, so blocks are made to use it.

    Args:
        blocks: of the model; each has its attention in `attn`.
        on_attention: called with each block's index and attention; None to skip it.
        on_branch: called with each block's input and the output of its attention, both [B, N, D]; None to skip it.

    Raises:
        BeyondClsError: the attention of a block cannot be seen.
    """
    if on_attention is None and on_branch is None:
        yield
        return
    watch = _Watch(layout, on_attention, on_branch)
    hooks: list[Any] = []
    fused: list[tuple[Any, bool]] = []
    try:
        for index, block in enumerate(blocks):
            attention = getattr(block, "attn", None)
            if not isinstance(attention, nn.Module):
                raise _hidden_error(index, block)
            hooks.append(block.register_forward_pre_hook(lambda _m, inputs, index=index: watch.enter(index, inputs[0])))
            hooks.append(attention.register_forward_hook(lambda _m, _i, out: watch.branch(out)))
            hooks.append(block.register_forward_hook(lambda _m, _i, _o: watch.leave()))
            for module in attention.modules():
                if hasattr(module, "fused_attn"):
                    fused.append((module, bool(module.fused_attn)))
                    module.fused_attn = True  # type: ignore[assignment]
        if on_attention is None:
            yield
        else:
            with watch:
                yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, fused_attn in fused:
            module.fused_attn = fused_attn


class _Watch(TorchFunctionMode):
    """Replaces `scaled_dot_product_attention`."""

    def __init__(
        self,
        layout: TokenLayout,
        on_attention: Callable[[int, Attention], None] | None,
        on_branch: Callable[[Tensor, Tensor], None] | None,
    ):
        super().__init__()
        self._layout, self._on_attention, self._on_branch = layout, on_attention, on_branch
        self._block: int | None = None
        self._memory: dict[str, Tensor] = {}
        self._n_attended = self._n_branches = 0
        self._residual: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention or self._block is None:
            return func(*args, **(kwargs or {}))
        out, attention = attend(self._layout, *args, **(kwargs or {}), memory=self._memory)
        self._n_attended += 1
        if self._on_attention is not None:
            self._on_attention(self._block, attention)
        return out

    def enter(self, block: int, residual: Tensor) -> None:
        self._block, self._n_attended, self._n_branches = block, 0, 0
        self._residual = residual if self._on_branch is not None else None

    def branch(self, out: Tensor) -> None:
        """Report what attention adds, and keep nothing: the next layers need the memory."""
        self._n_branches += 1
        if self._on_branch is not None and self._residual is not None:
            self._on_branch(self._residual, out)
            self._residual = None

    def leave(self) -> None:
        """The end of a block, which must have attended exactly once (differential attention does so twice)."""
        assert self._block is not None
        if self._on_attention is not None and self._n_attended != 1:
            raise _hidden_error(self._block, None, f"it attends {self._n_attended} times")
        if self._on_branch is not None and self._n_branches != 1:
            raise _hidden_error(self._block, None, f"its attention puts something out {self._n_branches} times")
        self._block = None


def _hidden_error(index: int, block: nn.Module | None, why: str = "") -> BeyondClsError:
    kind = type(block).__name__ if block is not None else why
    return BeyondClsError(
        f"cannot see the attention of block {index} ({kind}); extract this encoder with --statistics none --no-maps"
    )
