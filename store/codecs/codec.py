"""What a codec is: how values of an array become the numbers that are stored, and back, at once or where they are used."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from store.errors import StoreError
from store.format.layout import SCALE

__all__ = ["SCALE", "Cast", "Codec", "Coded", "plain"]


class Codec(ABC):
    """Turns values [..., D] into stored arrays and back; all but the last axis is left alone.

    Attributes:
        stored: dtype of the main array as torch sees its bits.
        zarr_dtype: the same as Zarr sees it.
        decoded: dtype that `decode` returns.
        largest: the largest magnitude that can be stored; NaN and infinities cannot.
        decodes_fast: decoding values twice, each time they are used, takes less time than reading them decoded.
    """

    name: ClassVar[str]
    stored: ClassVar[torch.dtype]
    zarr_dtype: ClassVar[str]
    decoded: ClassVar[torch.dtype] = torch.float32
    largest: ClassVar[float]
    decodes_fast: ClassVar[bool] = True

    def parts(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each stored array, by the suffix of its name: `""` is the main one.

        Raises:
            StoreError: this codec cannot store the last axis.
        """
        return {"": (shape, self.zarr_dtype)}

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the values, from that of the main array."""
        return stored

    def check(self, values: Tensor, name: str) -> None:
        """Refuse values that this codec cannot store.

        Raises:
            StoreError: `values` are not finite, or too large for this codec.
        """
        if not values.isfinite().all():
            raise StoreError(f"{name} holds NaN or Inf; only finite values can be stored")
        if (reached := values.abs().max().item() if values.numel() else 0.0) > self.largest:
            raise StoreError(
                f"{name} reaches {reached:.3g}, beyond the range of {self.name} (±{self.largest:.5g}); "
                "extract with --dtype float32"
            )

    @abstractmethod
    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """Stored arrays of float32 `values` that passed `check`, by the suffix of their names."""

    @abstractmethod
    def decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Values [..., D] in `decoded`, on the device of `parts`."""

    @abstractmethod
    def bound(self, values: Tensor) -> Tensor:
        """Largest absolute error of `decode(encode(values))`, element by element."""

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of all stored arrays of values of this shape."""
        return sum(math.prod(part) * getattr(torch, dtype).itemsize for part, dtype in self.parts(shape).values())


class Cast(Codec):
    """A codec that rounds to a floating-point format, to nearest even.

    Attributes:
        precision: bits of the significand, the hidden one included.
        smallest: the smallest positive number of the format.
    """

    precision: ClassVar[int]
    smallest: ClassVar[float]

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        return {"": values.to(self.stored)}

    def decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        return parts[""] if self.decoded == self.stored else parts[""].to(self.decoded)

    def bound(self, values: Tensor) -> Tensor:
        """Half a unit in the last place: |x| · 2^-precision, and half of the smallest number where that is larger."""
        return (values.abs().double() * 2.0**-self.precision).clamp(min=self.smallest / 2)


class Coded(Tensor):
    """Values [N, ...] that are not decoded yet. Any operation decodes all of them, and gives a plain tensor.

    Nothing can be written into it.

    Args:
        codec: made the parts.
        parts: stored arrays by the suffix of their names, on one device; the first axis of all is N.
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
