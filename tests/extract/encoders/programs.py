"""Pickles opcode by opcode, and the two forms of file that they are checkpoints in."""

import io
import pickle
import struct
import zipfile
from typing import Any

import torch

STORAGE_NBYTES = 64


def number(value: int) -> bytes:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def many(*values: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(values) + b"t"


def named(name: str) -> bytes:
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def call(name: str, *arguments: bytes) -> bytes:
    return named(name) + many(*arguments) + b"R"


def data(content: bytes) -> bytes:
    """Bytes as protocol 2 writes them."""
    return call("_codecs.encode", text(content.decode("latin-1")), text("latin1"))


def storage(kind: str = "Float", name: str = "0", n: int = 16) -> bytes:
    return many(text("storage"), named(f"torch.{kind}Storage"), text(name), text("cpu"), number(n)) + b"Q"


def tensor(size: tuple[int, ...] = (16,), stride: tuple[int, ...] = (1,), offset: int = 0, stored: bytes = b"") -> bytes:
    axes = (many(*map(number, axes)) for axes in (size, stride))
    hooks = call("collections.OrderedDict")
    return call("torch._utils._rebuild_tensor_v2", stored or storage(), number(offset), *axes, b"\x89", hooks)


def dictionary(value: bytes) -> bytes:
    return b"}" + text("x") + value + b"s"


def zipped(program: bytes, n_storages: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("w/data.pkl", b"\x80\x02" + program + b".")
        for i in range(n_storages):
            archive.writestr(f"w/data/{i}", bytes(range(STORAGE_NBYTES)))
        archive.writestr("w/version", "3\n")
    return file.getvalue()


def legacy(program: bytes, n_storages: int = 1) -> bytes:
    stored = io.BytesIO()
    torch.save({}, stored, _use_new_zipfile_serialization=False)
    head = stored.getvalue()[: stored.getvalue().index(b"\x80\x02}q\x00.")]
    program = program.replace(b"tQ", b"NtQ")  # where a storage begins in another one
    n_storages *= b"tQ" in program
    keys: Any = pickle.dumps([str(i) for i in range(n_storages)], protocol=2)
    storages = (struct.pack("<q", STORAGE_NBYTES // 4) + bytes(range(STORAGE_NBYTES))) * n_storages
    return head + b"\x80\x02" + program + b"." + keys + storages
