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
KINDS = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
STORAGES = {f"torch.{kind}Storage": dtype for kind, dtype in KINDS.items()} | {"torch.storage.UntypedStorage": torch.uint8}
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
UNTYPED = {
    torch.uint16,
    torch.uint32,
    torch.uint64,
    *(d for d in DTYPES.values() if d.is_floating_point),
}  # without own storage
NUMBERS = {code: np.dtype(f"<{code}") for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")}
PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
NOT_TORCH = "torch.save did not write it; is it a plain pickle, a page of a web server, or a .safetensors file by another name?"


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
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", "|", "="):
            raise ValueError(f"a number of numpy whose dtype has the state {type(state).__name__}, expected little-endian")


def read_torch_file(path: Path) -> Any:
    """What `torch.save` wrote: tensors, and beside them numbers, text, lists, tuples, sets, dictionaries and `Namespace`.

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
        if "byteorder" in self._entries and bytes(self._entry("byteorder").numpy()) != b"little":
            raise ValueError("it was written on a big-endian machine; save it again on another one")
        content = bytes(self._entry("data.pkl").numpy())
        return self._pickle(BytesIO(content)).load()

    def legacy(self, head: bytes) -> Any:
        if head[257:262] == TAR:
            raise HoldsCode("has the .tar format of old torch")
        if not head.startswith(PICKLE):
            raise ValueError(NOT_TORCH)
        pickles = self._pickle(self._file)
        if (pickles.load(), pickles.load()) != (MAGIC, PROTOCOL):
            raise ValueError(NOT_TORCH)
        if pickles.load()["little_endian"] is not True:
            raise ValueError("it was written on a big-endian machine; save it again on another one")
        content, keys = pickles.load(), pickles.load()
        if type(keys) is not list or sorted(_texts(keys)) != sorted(self._contents):
            raise ValueError(f"it lists other storages than the {len(self._contents)} that it uses")
        for name in keys:
            stored = self._contents[name]
            n = int.from_bytes(self._file.read(8), "little")
            if n * stored.dtype.itemsize != len(stored.content):
                raise ValueError(f"a storage of {n} elements, expected {len(stored.content) // stored.dtype.itemsize}")
            self._fill(stored.content)
        return content

    def _pickle(self, source: Any) -> PlainPickle:
        return PlainPickle(source, self._nbytes, self._names, BUILD, self._stored)

    def _stored(self, id_: Any) -> Stored:
        """What ("storage", type, key, device, number of elements) stands for."""
        what, kind, name, _, n, *view = id_
        if what != "storage" or type(kind) is not Named or kind.name not in STORAGES or any(view):
            raise ValueError(f"it refers to {what!r}, expected a storage")
        if type(name) is not str or type(n) is not int or n < 0:
            raise ValueError(f"it refers to the storage {name!r} of {n!r} elements")
        nbytes = n * kind.meaning.itemsize
        if name not in self._contents:
            content = self._entry(f"data/{name}") if self._entries is not None else self._allocated(nbytes)
            self._contents[name] = Stored(content, kind.meaning)
        content = self._contents[name].content
        if nbytes > len(content):
            raise ValueError(f"storage {name} has {len(content)} bytes, expected {nbytes}")
        return Stored(content[:nbytes], kind.meaning)

    def _entry(self, name: str) -> UInt8[Tensor, "..."]:
        """Content of a file in the zip."""
        entry = self._entries[name]  # type: ignore[index]
        if entry.compress_type != ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"its {name} is compressed, which torch.save does not do")
        content = self._allocated(entry.file_size)
        self._file.seek(entry.header_offset)
        header = self._file.read(30)
        n_before = int.from_bytes(header[26:28], "little") + int.from_bytes(
            header[28:30], "little"
        )  # a name, and further fields
        self._file.seek(n_before, 1)
        self._fill(content)
        return content

    def _allocated(self, nbytes: int) -> UInt8[Tensor, "..."]:
        self._left -= nbytes
        if self._left < 0:
            raise ValueError(f"its storages have more than the {self._nbytes} bytes of the file; it is cut")
        return torch.empty(nbytes, dtype=torch.uint8)

    def _fill(self, content: UInt8[Tensor, "..."]) -> None:
        if (n := self._file.readinto(content.numpy())) < len(content):  # type: ignore[attr-defined]
            raise ValueError(f"it ends within a storage, {len(content) - n} bytes early")

    def _tensor(
        self,
        stored: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any = False,
        hooks: Any = None,
        metadata: Any = None,
    ) -> Tensor:
        if type(stored) is not Stored or metadata:
            raise ValueError("a tensor that is no plain view of a storage; save its tensors after .contiguous()")
        return self._view(stored, stored.dtype, offset, size, stride)

    def _tensor_of_dtype(
        self,
        stored: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any,
        hooks: Any,
        dtype: Any,
        metadata: Any = None,
    ) -> Tensor:
        if type(stored) is not Stored or type(dtype) is not Named or dtype.meaning not in UNTYPED or metadata:
            raise ValueError("a tensor of no plain dtype")
        return self._view(stored, dtype.meaning, offset, size, stride)

    def _view(self, stored: Stored, dtype: torch.dtype, offset: Any, size: Any, stride: Any) -> Tensor:
        """A tensor within a storage, whose shape is that of a tensor as large as the file at most: axes may be expanded."""
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


def _parameter(tensor: Any, *_: Any) -> Tensor:
    """A tensor without what was attached to it."""
    if type(tensor) is not Tensor:
        raise ValueError(f"a parameter that is a {type(tensor).__name__}")
    return tensor


def _with_attributes(rebuild: Any, kind: Any, arguments: Any, state: Any) -> Tensor:
    if type(rebuild) is not Named or not rebuild.name.startswith("torch._utils.") or type(arguments) is not tuple:
        raise ValueError("a tensor with attributes, which nothing makes")
    return _parameter(rebuild(*arguments))


def _dictionary(content: Any = ()) -> dict[Any, Any]:
    if type(content) is dict:
        return dict(content)
    if type(content) not in (tuple, list) or not all(type(pair) in (tuple, list) and len(pair) == 2 for pair in content):
        raise ValueError(f"a dictionary of a {type(content).__name__}, expected pairs")
    return {key(name): value for name, value in content}


def _set(items: Any = ()) -> set[Any]:
    if type(items) not in (tuple, list):
        raise ValueError(f"a set of a {type(items).__name__}")
    return set(map(key, items))


def _size(axes: Any = ()) -> tuple[int, ...]:
    if type(axes) not in (tuple, list) or not all(type(n) is int for n in axes):
        raise ValueError("a torch.Size that holds more than integers")
    return tuple(axes)


def _path(*parts: Any) -> str:
    """A path, as text: it may come from another system, and nothing is opened."""
    return "/".join(_texts(parts)).replace("//", "/") or "."  # which Pythons before 3.13 write as no part


def _texts(values: Sequence[Any]) -> Sequence[str]:
    if not all(type(value) is str for value in values):
        raise ValueError("a value that is not text, where its pickle needs one")
    return values


def _device(kind: Any = "", number: Any = "") -> str:
    return ":".join(_texts((kind, str(number)))) if type(number) is int else _texts((kind,))[0]


def _bytes(text: Any, encoding: Any) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes that are not written as latin1")
    return _texts((text,))[0].encode("latin-1")


def _complex(real: Any, imaginary: Any) -> complex:
    if not type(real) is type(imaginary) is float:
        raise ValueError("a complex number that is not of two numbers")
    return complex(real, imaginary)


def _number_dtype(code: Any, *_: Any) -> NumberDtype:
    if type(code) is not str or code not in NUMBERS:
        raise UnknownName(f"numpy.dtype {str(code)[:20]!r}" if type(code) is str else "numpy.dtype")
    return NumberDtype(code)


def _number(dtype: Any, data: Any) -> np.generic:
    if type(dtype) is not NumberDtype or type(data) is not bytes or len(data) != NUMBERS[dtype.code].itemsize:
        raise ValueError("a number of numpy that is not written as its dtype and its bytes")
    return np.frombuffer(data, NUMBERS[dtype.code])[0]


def _fill_namespace(namespace: argparse.Namespace, state: Any) -> None:
    if type(state) is not dict:
        raise ValueError("an argparse.Namespace without a dictionary")
    _texts(list(state))
    vars(namespace).update(state)


# What training scripts leave beside the weights. Schedules leave learning rates as numbers of numpy in an optimizer's state;
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
    "torch.Tensor": None,  # beside a tensor with attributes, as its type
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
