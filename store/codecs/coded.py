"""Values as their codec keeps them, for code that decodes them where they are used."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from store.codecs.codec import Codec


class Coded(Tensor):
    """Values [N, ...] that are not decoded yet. Any operation decodes all of them, and gives a plain tensor.

    Nothing can be written into it.

    Args:
        codec: made the parts.
        parts: stored arrays by the suffix of their names, on one device; the first axis of all is N.

    Attributes:
        codec, parts: likewise.
    """

    codec: Codec
    parts: Mapping[str, Tensor]

    @staticmethod
    def __new__(cls, codec: Codec, parts: Mapping[str, Tensor]) -> "Coded":
        main = parts[""]
        made = Tensor._make_wrapper_subclass(cls, codec.shape(tuple(main.shape)), dtype=codec.decoded, device=main.device)
        made.codec, made.parts = codec, parts
        return made

    def decoded(self, rows: slice = slice(None)) -> Tensor:
        """Values of some rows, as `Codec.decode` gives them."""
        return self.codec.decode({suffix: values[rows] for suffix, values in self.parts.items()})

    def record_stream(self, stream: Any) -> None:
        for values in self.parts.values():
            values.record_stream(stream)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Coded({self.codec.name}, {list(self.shape)}, {self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return Coded(args[0].codec, args[0].parts)
        assert not func._schema.is_mutable or not isinstance(args[0], Coded), f"{func} would change values that are coded"
        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


def plain(values: Any) -> Any:
    """Decoded, if they are coded; anything else as it is."""
    return values.decoded() if isinstance(values, Coded) else values
