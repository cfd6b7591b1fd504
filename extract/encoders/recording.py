"""A pass over images, recorded: which module ran within which, what it put out, and when attention was computed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from extract.attention.watch import first_tensor, is_softmax, use_of
from store import BeyondClsError

Forward = Callable[[nn.Module, Tensor], Any]


class ListedBlock:
    """A block that is a list of parts, which the model calls one by one, with the hooks of a module.

    No module puts out its tokens: they are what the next block is given; behind the last one, what the module that comes next
    is given, or that around puts out.
    """

    def __init__(self, first: nn.Module, then: nn.Module, puts_out: bool):
        self._first, self._then, self._puts_out = first, then, puts_out

    def register_forward_pre_hook(self, hook: Callable[..., None], with_kwargs: bool = False) -> Any:
        return self._first.register_forward_pre_hook(hook, with_kwargs=with_kwargs)

    def register_forward_hook(self, hook: Callable[..., None]) -> Any:
        if self._puts_out:
            return self._then.register_forward_hook(hook)

        def given(module: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
            hook(module, inputs, first_tensor((*inputs, *options.values())))

        return self._then.register_forward_pre_hook(given, with_kwargs=True)


class Record(TorchFunctionMode):
    """A pass of a model over images.

    Attributes:
        modules: those of the model, by their paths.
        called: of each module, by its path, what it put out in each call: its (first) tensor.
        order: the paths in the order in which modules ended.
        taken: the (first) tensor that each module was given in its first call.
        attended: paths of the modules that ran when attention was computed, outermost first; an entry for each time, and two
            where something else is done with it than to multiply values.
        listed: blocks that are lists of parts, which are in all of these as if each were a module.
        output: what the model put out.
    """

    def __init__(self, model: nn.Module, forward: Forward, images: Tensor):
        super().__init__()
        self.model, self.forward, self.images = model, forward, images
        self.modules = {path: module for path, module in model.named_modules() if path}
        self.called: dict[str, list[Tensor | None]] = {}
        self.order: list[str] = []
        self.taken: dict[str, Tensor] = {}
        self.attended: list[tuple[str, ...]] = []
        self.listed: dict[str, ListedBlock] = {}
        self._running: list[str] = []
        self._weights: Tensor | None = None  # of a softmax, until they are multiplied with values
        with ExitStack() as hooks, torch.inference_mode():
            for path, module in self.modules.items():
                hooks.enter_context(module.register_forward_pre_hook(partial(self._begin, path), with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(partial(self._end, path)))
            try:
                with self:
                    self.output = forward(model, images)
            except Exception as error:
                raise BeyondClsError(
                    f"{self.kind} does not run on images {list(images.shape)}: {type(error).__name__}: {error}; give "
                    "forward=lambda model, images: …, which runs it, or the input_size that it takes"
                ) from error
        for path, module in model.named_modules():
            blocks = [
                f"{path}.{name}".lstrip(".") for name, child in module.named_children() if isinstance(child, nn.ModuleList)
            ]
            if isinstance(module, nn.ModuleList) and blocks and len(blocks) == len(module):
                self._join(path.rpartition(".")[0], blocks)

    @property
    def kind(self) -> str:
        """The model's class, for messages."""
        return type(self.model).__name__

    def out(self, path: str) -> Tensor | None:
        """What a module that ran once put out; None for others."""
        outputs = self.called.get(path, [])
        return outputs[0] if len(outputs) == 1 else None

    def _begin(self, path: str, _module: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        self._running.append(path)
        if path not in self.taken and (taken := first_tensor((*inputs, *options.values()))) is not None:
            self.taken[path] = _copy(taken)

    def _end(self, path: str, _module: nn.Module, _inputs: Any, out: Any) -> None:
        self._running.pop()
        values = first_tensor(out)
        self.called.setdefault(path, []).append(None if values is None else _copy(values))
        self.order.append(path)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out, n_attended = func(*args, **kwargs), 0
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            n_attended = 1
        elif is_softmax(func, args, kwargs):
            self._weights = out
        elif (use := use_of(self._weights, func, args, kwargs, out)) is not None:
            self._weights = out if use == "same" else None
            n_attended = {"same": 0, "product": 1, "other": 2}[use]
        self.attended += n_attended * [tuple(self._running)]
        return out

    def _join(self, around: str, blocks: Sequence[str]) -> None:
        """Add blocks that are lists of parts as if each were a module."""
        begun = [path for path in self.taken if len(self.called.get(path, ())) == 1]
        parts = [[path for path in begun if path.startswith(f"{block}.")] for block in blocks]
        attends = [any(path.startswith(f"{block}.") for stack in self.attended for path in stack) for block in blocks]
        if not all(parts) or not all(attends):
            return
        behind = [path for path in begun[begun.index(parts[-1][-1]) + 1 :] if path.startswith(f"{around}.".lstrip("."))]
        for block, own, then in zip(blocks, parts, [*(own[0] for own in parts[1:]), (behind or [around])[0]], strict=True):
            puts_out = then == around
            out = self.out(then) if puts_out else self.taken[then]
            if out is None:
                return
            self.listed[block] = ListedBlock(self.modules[own[0]], self.modules[then], puts_out)
            self.taken[block], self.called[block] = self.taken[own[0]], [out]
            ended = max(index for index, path in enumerate(self.order) if path in own)
            self.order.insert(ended + 1, block)
            for index, stack in enumerate(self.attended):
                if inside := [depth for depth, path in enumerate(stack) if path in own]:
                    self.attended[index] = (*stack[: inside[0]], block, *stack[inside[0] :])


def _copy(values: Tensor) -> Tensor:
    """A copy, as later layers may work in place; function modes do not see it."""
    with torch._C.DisableTorchFunction():
        return values.clone()
