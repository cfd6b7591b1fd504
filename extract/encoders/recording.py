"""A pass over images, recorded: which module ran within which, what it put out, and when attention was computed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from extract.attention.watch import first_tensor, is_softmax, use_of
from store import BeyondClsError

Forward = Callable[[nn.Module, Tensor], Any]


@dataclass(frozen=True)
class Bounds:
    """Between which modules a block runs that is no module itself.

    Attributes:
        first: path of the module that is given what the block is.
        then: path of the module that is given the block's tokens, or puts them out.
        puts_out: which of the two.
    """

    first: str
    then: str
    puts_out: bool


@dataclass
class Record:
    """A pass over images.

    Attributes:
        called: of each module, by its path, what it put out in each call: its (first) tensor.
        order: the paths in the order in which modules ended.
        taken: the (first) tensor that each module was given in its first call.
        attended: paths of the modules that ran when attention was computed, outermost first; an entry for each time.
        bounds: of blocks that are lists of parts, where they begin and end.
        output: what the model put out.
    """

    called: dict[str, list[Tensor | None]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    taken: dict[str, Tensor] = field(default_factory=dict)
    attended: list[tuple[str, ...]] = field(default_factory=list)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    output: Any = None

    def out(self, path: str) -> Tensor | None:
        """What a module that ran once put out; None for others."""
        outputs = self.called.get(path, [])
        return outputs[0] if len(outputs) == 1 else None


@torch.inference_mode()
def record_modules(model: nn.Module, forward: Forward, images: Tensor) -> Record:
    """Record a pass, of modules alone.

    Raises:
        BeyondClsError: the model does not run on the images.
    """
    seen = Record()
    with _hooks(model, seen) as running, _Attended(running, seen):
        try:
            seen.output = forward(model, images)
        except Exception as error:
            raise BeyondClsError(
                f"{type(model).__name__} does not run on images {list(images.shape)}: {type(error).__name__}: {error}; give "
                "forward=lambda model, images: …, which runs it, or the input_size that it takes"
            ) from error
    return seen


@contextmanager
def _hooks(model: nn.Module, seen: Record) -> Iterator[list[str]]:
    running: list[str] = []
    hooks: list[Any] = []

    def begin(path: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        running.append(path)
        if path not in seen.taken and (taken := first_tensor((*inputs, *options.values()))) is not None:
            seen.taken[path] = _kept(taken)

    def end(path: str, out: Any) -> None:
        running.pop()
        values = first_tensor(out)
        seen.called.setdefault(path, []).append(None if values is None else _kept(values))
        seen.order.append(path)

    for path, module in model.named_modules():
        if path:
            hooks.append(module.register_forward_pre_hook(lambda _m, i, k, p=path: begin(p, i, k), with_kwargs=True))
            hooks.append(module.register_forward_hook(lambda _m, _i, out, p=path: end(p, out)))
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def _kept(values: Tensor) -> Tensor:
    """A copy, as later layers may work in place; of which a mode is not told."""
    with torch._C.DisableTorchFunction():
        return values.clone()


class _Attended(TorchFunctionMode):
    """Notes when attention is computed; twice where something else is done with it than to multiply values."""

    def __init__(self, running: Sequence[str], seen: Record):
        super().__init__()
        self._running, self._seen = running, seen
        self._weights: Tensor | None = None  # of a softmax, until they are multiplied with values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            self._note()
        elif is_softmax(func, args, kwargs):
            self._weights = out
        elif (use := use_of(self._weights, func, args, kwargs, out)) is not None:
            self._weights = out if use == "same" else None
            for _ in range({"same": 0, "product": 1, "other": 2}[use]):
                self._note()
        return out

    def _note(self) -> None:
        self._seen.attended.append(tuple(self._running))
