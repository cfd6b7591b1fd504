"""Blocks that are lists of parts, which the model calls one by one: no module puts out the tokens of such a block.

They are what the next block is given; behind the last one, what the module that comes next is given, or that around puts out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from extract.attention.watch import first_tensor
from extract.encoders.recording import Bounds, Record


def join_parts(model: nn.Module, seen: Record) -> None:
    """Add such blocks to the record of a pass as if each were a module."""
    for path, module in model.named_modules():
        blocks = [f"{path}.{name}".lstrip(".") for name, child in module.named_children() if isinstance(child, nn.ModuleList)]
        if isinstance(module, nn.ModuleList) and blocks and len(blocks) == len(module):
            _join(path.rpartition(".")[0], blocks, seen)


def _join(around: str, blocks: Sequence[str], seen: Record) -> None:
    begun = [path for path in seen.taken if len(seen.called.get(path, ())) == 1]
    parts = [[path for path in begun if path.startswith(f"{block}.")] for block in blocks]
    attends = [any(path.startswith(f"{block}.") for stack in seen.attended for path in stack) for block in blocks]
    if not all(parts) or not all(attends):
        return
    behind = [path for path in begun[begun.index(parts[-1][-1]) + 1 :] if path.startswith(f"{around}.".lstrip("."))]
    for block, own, then in zip(blocks, parts, [*(own[0] for own in parts[1:]), (behind or [around])[0]], strict=True):
        puts_out = then == around
        out = seen.out(then) if puts_out else seen.taken[then]
        if out is None:
            return
        seen.bounds[block] = Bounds(own[0], then, puts_out)
        seen.taken[block], seen.called[block] = seen.taken[own[0]], [out]
        ended = max(index for index, path in enumerate(seen.order) if path in own)
        seen.order.insert(ended + 1, block)
        for index, stack in enumerate(seen.attended):
            if inside := [depth for depth, path in enumerate(stack) if path in own]:
                seen.attended[index] = (*stack[: inside[0]], block, *stack[inside[0] :])


class ListedBlock:
    """Such a block with the hooks of a module."""

    def __init__(self, bounds: Bounds, modules: Mapping[str, nn.Module]):
        self._first, self._then, self._puts_out = modules[bounds.first], modules[bounds.then], bounds.puts_out

    def register_forward_pre_hook(self, hook: Callable[..., None], with_kwargs: bool = False) -> Any:
        return self._first.register_forward_pre_hook(hook, with_kwargs=with_kwargs)

    def register_forward_hook(self, hook: Callable[..., None]) -> Any:
        if self._puts_out:
            return self._then.register_forward_hook(hook)

        def given(module: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
            hook(module, inputs, first_tensor((*inputs, *options.values())))

        return self._then.register_forward_pre_hook(given, with_kwargs=True)
