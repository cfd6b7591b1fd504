"""Files of `torch.save`, read as plain data: no code runs, and no memory is taken that the file's size does not justify."""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from extract.plain_pickle import Named, PlainPickle, UnknownName, key

ZIP, PICKLE, TAR = b"PK\3\4", b"\x80\2", b"ustar"  # first bytes; bytes 257 to 262
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # with which files before torch 1.6 begin
MOST_AXES = 64
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
STORAGES = {
    "torch.storage.UntypedStorage": torch.uint8,
    "torch.ComplexDoubleStorage": torch.complex128,
    "torch.ComplexFloatStorage": torch.complex64,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    **{
        f"torch.{kind}Storage": getattr(torch, kind.lower())
        for kind in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Bool")
    },
}
# Without a storage of their own.
UNTYPED = {torch.uint16, torch.uint32, torch.uint64, *(dtype for dtype in DTYPES.values() if dtype.is_floating_point)}
NUMBERS = {code: np.dtype(f"<{code}") for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")}
PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
NOT_TORCH = "torch.save did not write it; is it a plain pickle, a page of a web server, or a .safetensors file by another name?"
BIG_ENDIAN = "it was written on a big-endian machine; save it again on another one"


class HoldsCode(ValueError):
    """A file in which not all is plain data; says so as what the file "is", "has" or "holds"."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Bytes that tensors are views of, and their dtype unless a tensor has another."""

    content: UInt8[Tensor, "..."]
    dtype: torch.dtype


@dataclass(eq=False)
class NumberDtype:
    """Stands for the dtype of a number of numpy; a real one would trust the state that a file gives it."""

    code: str

    def take(self, state: Any) -> None:
        is_little = type(state) is tuple and len(state) >= 2 and state[1] in ("<", "|", "=")
        _expect(is_little, f"a number of numpy whose dtype has the state {type(state).__name__}, expected little-endian")


def _expect(is_so: bool, fault: str) -> None:
    if not is_so:
        raise ValueError(fault)


def read_torch_file(path: Path) -> Any:
    """What `torch.save` wrote: tensors, and also numbers, text, lists, tuples, sets, dictionaries and `Namespace`.

    Dictionaries of any kind are plain ones, parameters are tensors, paths and devices are text. `Stored`, `Named` and
    `NumberDtype` stand for what a file names or holds without using it.

    Raises:
        HoldsCode: it holds more than that.
        ValueError: it is damaged, or not of torch. Damage also raises IndexError, KeyError, TypeError, RuntimeError, OSError.
    """
    with path.open("rb") as file:
        head = file.read(512)
        file.seek(0)
        reader = _Reader(file, path.stat().st_size)
        try:
            return reader.zipped() if head.startswith(ZIP) else reader.legacy(head)
        except UnknownName as error:
            raise HoldsCode(
                f"holds more than tensors, a {str(error).removeprefix('builtins.').removeprefix('__builtin__.')},"
            ) from None
        except BadZipFile as error:
            raise ValueError(str(error)) from error


class _Reader:
    """Reads one file, of `nbytes` bytes.

    Every storage is a part of the file of its own, so all of them are at most as large as the file.
    """

    def __init__(self, file: BinaryIO, nbytes: int):
        self._file, self._nbytes, self._left = file, nbytes, nbytes
        self._entries: dict[str, ZipInfo] | None = None
        self._contents: dict[str, Stored] = {}
        self._names = NAMES | {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._tensor_of_dtype,
        }

    def zipped(self) -> Any:
        with ZipFile(self._file) as archive:
            files = archive.infolist()
        folder = files[0].filename.partition("/")[0] if files else ""
        self._entries = {file.filename.removeprefix(f"{folder}/"): file for file in files}
        if "constants.pkl" in self._entries:
            raise HoldsCode("is a TorchScript archive, which holds code,")
        _expect("byteorder" not in self._entries or bytes(self._entry("byteorder").numpy()) == b"little", BIG_ENDIAN)
        return self._pickle(BytesIO(bytes(self._entry("data.pkl").numpy()))).load()

    def legacy(self, head: bytes) -> Any:
        if head[257:262] == TAR:
            raise HoldsCode("has the .tar format of old torch")
        _expect(head.startswith(PICKLE), NOT_TORCH)
        pickles = self._pickle(self._file)
        _expect((pickles.load(), pickles.load()) == (MAGIC, PROTOCOL), NOT_TORCH)
        _expect(pickles.load()["little_endian"] is True, BIG_ENDIAN)
        content, keys = pickles.load(), pickles.load()
        is_whole = type(keys) is list and sorted(_texts(keys)) == sorted(self._contents)
        _expect(is_whole, f"it lists other storages than the {len(self._contents)} that it uses")
        for name in keys:
            stored = self._contents[name]
            n, expected = int.from_bytes(self._file.read(8), "little"), len(stored.content) // stored.dtype.itemsize
            _expect(n == expected, f"a storage of {n} elements, expected {expected}")
            self._fill(stored.content)
        return content

    def _pickle(self, source: Any) -> PlainPickle:
        return PlainPickle(source, self._nbytes, self._names, BUILD, self._storage)

    def _storage(self, id_: Any) -> Stored:
        """What ("storage", type, key, device, number of elements) stands for."""
        what, kind, name, _, n, *view = id_
        is_storage = what == "storage" and type(kind) is Named and kind.name in STORAGES and not any(view)
        _expect(is_storage, f"it refers to {what!r}, expected a storage")
        is_plain = type(name) is str and type(n) is int and n >= 0
        _expect(is_plain, f"it refers to the storage {name!r} of {n!r} elements")
        nbytes = n * kind.meaning.itemsize
        if name not in self._contents:
            content = self._entry(f"data/{name}") if self._entries is not None else self._allocate(nbytes)
            self._contents[name] = Stored(content, kind.meaning)
        content = self._contents[name].content
        _expect(nbytes <= len(content), f"storage {name} has {len(content)} bytes, expected {nbytes}")
        return Stored(content[:nbytes], kind.meaning)

    def _entry(self, name: str) -> UInt8[Tensor, "..."]:
        """Content of a file in the zip."""
        entry = self._entries[name]  # type: ignore[index]
        is_plain = entry.compress_type == ZIP_STORED and entry.file_size == entry.compress_size
        _expect(is_plain, f"its {name} is compressed, which torch.save does not do")
        content = self._allocate(entry.file_size)
        self._file.seek(entry.header_offset)
        header = self._file.read(30)
        self._file.seek(sum(int.from_bytes(header[i : i + 2], "little") for i in (26, 28)), 1)  # a name, and further fields
        self._fill(content)
        return content

    def _allocate(self, nbytes: int) -> UInt8[Tensor, "..."]:
        self._left -= nbytes
        _expect(self._left >= 0, f"its storages have more than the {self._nbytes} bytes of the file; it is cut")
        return torch.empty(nbytes, dtype=torch.uint8)

    def _fill(self, content: UInt8[Tensor, "..."]) -> None:
        n: int = self._file.readinto(content.numpy())  # type: ignore[attr-defined]
        _expect(n == len(content), f"it ends within a storage, {len(content) - n} bytes early")

    def _tensor(self, stored: Any, offset: Any, size: Any, stride: Any, *rest: Any, of: torch.dtype | None = None) -> Tensor:
        """A tensor within a storage, whose shape is that of a tensor as large as the file at most: axes may be expanded.

        Args:
            rest: whether it has a gradient, hooks, and metadata, which is empty.
            of: its dtype, if not the storage's.
        """
        is_view = type(stored) is Stored and len(rest) <= 3 and not any(rest[2:])
        _expect(is_view, "a tensor that is no plain view of a storage; save its tensors after .contiguous()")
        dtype = of or stored.dtype
        are_lists = all(type(axes) in (tuple, list) and len(axes) <= MOST_AXES for axes in (size, stride))
        if not are_lists or len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in (offset, *size, *stride)):
            raise ValueError("a tensor without size, stride and offset")
        end = offset + (1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else 0)
        if end * dtype.itemsize > len(stored.content) or math.prod(size) * dtype.itemsize > self._nbytes:
            raise ValueError(
                f"a tensor of shape {list(size)} and strides {list(stride)} from element {offset} in a storage of "
                f"{len(stored.content)} bytes"
            )
        return torch.empty(0, dtype=dtype).set_(stored.content.untyped_storage(), offset, size, stride)

    def _tensor_of_dtype(self, *arguments: Any) -> Tensor:
        *before, dtype, metadata = arguments if len(arguments) == 8 else (*arguments, None)
        _expect(type(dtype) is Named and dtype.meaning in UNTYPED, "a tensor of no plain dtype")
        return self._tensor(*before, metadata, of=dtype.meaning)


def _parameter(tensor: Any, *_: Any) -> Tensor:
    """A tensor without what was attached to it."""
    _expect(type(tensor) is Tensor, f"a parameter that is a {type(tensor).__name__}")
    return tensor


def _with_attributes(rebuild: Any, kind: Any, arguments: Any, state: Any) -> Tensor:
    is_rebuilt = type(rebuild) is Named and rebuild.name.startswith("torch._utils.") and type(arguments) is tuple
    _expect(is_rebuilt, "a tensor with attributes, which nothing makes")
    return _parameter(rebuild(*arguments))


def _dictionary(content: Any = ()) -> dict[Any, Any]:
    if type(content) is dict:
        return dict(content)
    are_pairs = _is_list(content) and all(_is_list(pair) and len(pair) == 2 for pair in content)
    _expect(are_pairs, f"a dictionary of a {type(content).__name__}, expected pairs")
    return {key(name): value for name, value in content}


def _is_list(value: Any) -> bool:
    return type(value) in (tuple, list)


def _set(items: Any = ()) -> set[Any]:
    _expect(_is_list(items), f"a set of a {type(items).__name__}")
    return set(map(key, items))


def _size(axes: Any = ()) -> tuple[int, ...]:
    _expect(_is_list(axes) and all(type(n) is int for n in axes), "a torch.Size that holds more than integers")
    return tuple(axes)


def _path(*parts: Any) -> str:
    """A path, as text: it may come from another system, and nothing is opened."""
    return "/".join(_texts(parts)).replace("//", "/") or "."  # which Pythons before 3.13 write as no part


def _texts(values: Sequence[Any]) -> Sequence[str]:
    _expect(all(type(value) is str for value in values), "a value that is not text, where its pickle needs one")
    return values


def _device(kind: Any = "", number: Any = "") -> str:
    return ":".join(_texts((kind, str(number)))) if type(number) is int else _texts((kind,))[0]


def _bytes(text: Any, encoding: Any) -> bytes:
    _expect(encoding in ("latin1", "latin-1"), "bytes that are not written as latin1")
    return _texts((text,))[0].encode("latin-1")


def _complex(real: Any, imaginary: Any) -> complex:
    _expect(type(real) is type(imaginary) is float, "a complex number that is not of two numbers")
    return complex(real, imaginary)


def _number_dtype(code: Any, *_: Any) -> NumberDtype:
    if type(code) is not str or code not in NUMBERS:
        raise UnknownName(f"numpy.dtype {str(code)[:20]!r}" if type(code) is str else "numpy.dtype")
    return NumberDtype(code)


def _number(dtype: Any, data: Any) -> np.generic:
    is_number = type(dtype) is NumberDtype and type(data) is bytes and len(data) == NUMBERS[dtype.code].itemsize
    _expect(is_number, "a number of numpy that is not written as its dtype and its bytes")
    return np.frombuffer(data, NUMBERS[dtype.code])[0]


def _fill_namespace(namespace: argparse.Namespace, state: Any) -> None:
    _expect(type(state) is dict, "an argparse.Namespace without a dictionary")
    _texts(list(state))
    vars(namespace).update(state)


# What training scripts store with the weights. Schedules leave learning rates as numbers of numpy in an optimizer's state;
# files of numpy 1 say `core` where those of numpy 2 say `_core`. Launchers of clusters (submitit) leave folders in `args`,
# which Python 3.13 names by another module than Pythons before and after it. Pickles of protocol 2 name builtins as Python 2.
NAMES: dict[str, Any] = {
    **STORAGES,
    **DTYPES,
    "argparse.Namespace": argparse.Namespace,
    "collections.OrderedDict": _dictionary,
    "collections.Counter": _dictionary,
    "yacs.config.CfgNode": _dictionary,
    **{f"{module}.set": _set for module in ("builtins", "__builtin__")},
    **{f"{module}.complex": _complex for module in ("builtins", "__builtin__")},
    "_codecs.encode": _bytes,
    **{f"{module}.{kind}": _path for module in ("pathlib", "pathlib._local") for kind in PATHS},
    "numpy.dtype": _number_dtype,
    **{f"numpy.{core}.multiarray.scalar": _number for core in ("core", "_core")},
    "torch.Size": _size,
    "torch.device": _device,
    "torch.Tensor": None,  # stored with a tensor with attributes, as its type
    "torch.nn.parameter.Parameter": None,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _with_attributes,
}
BUILD: dict[type, Any] = {
    dict: lambda dictionary, state: None,  # attributes, such as versions of modules
    argparse.Namespace: _fill_namespace,
    NumberDtype: NumberDtype.take,
}
assert sys.byteorder == "little", "as all machines that torch is published for, but one"
