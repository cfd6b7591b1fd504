"""Attention of every block, caught during the same forward pass that makes the tokens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from store import BeyondClsError


@contextmanager
def attention_of(blocks: nn.Sequential, receive: Callable[[int, Tensor], None]) -> Iterator[None]:
    """While active, `receive(block, attention [B, H, N, N])` is called once per block of each forward pass.

    timm's attention modules pass the softmax output through `attn_drop` unless they are fused, whatever they add before it
    (relative position bias, rotary embedding, normalised queries and keys), so that is where it is read. Fusing is switched
    off meanwhile.

    Raises: BeyondClsError: a block has no `attn.attn_drop`, so its attention cannot be seen.
    """
    fused, hooks = [], []
    try:
        for index, block in enumerate(blocks):
            attention = getattr(block, "attn", block)
            drop = getattr(attention, "attn_drop", None)
            if not isinstance(drop, nn.Module):
                kind = type(attention).__name__
                raise BeyondClsError(
                    f"cannot see the attention of block {index} ({kind}); extract this encoder with --statistics none --no-maps"
                )
            if hasattr(attention, "fused_attn"):
                fused.append((attention, attention.fused_attn))
                attention.fused_attn = False
            hooks.append(drop.register_forward_hook(lambda _module, _input, output, index=index: receive(index, output)))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for attention, was in fused:
            attention.fused_attn = was
