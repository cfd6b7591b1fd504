"""MATLAB files that are made to crash scipy, which descends by calls in C; none reaches it."""

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.extract.untrusted import Reading, reading

CELL, STRUCTURE, OBJECT, DOUBLE = 1, 2, 3, 6
DEPTH = 20_000  # at which scipy overflows the stack


def element(kind: int, content: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}II", kind, len(content)) + content + bytes(-len(content) % 8)


def nested(depth: int, order: str = "<", kind: int = CELL, stated: int | None = None) -> bytes:
    """A variable x, a cell in a cell in a cell; `stated`: bytes that each says to have."""
    inner = matrix(DOUBLE, b"", element(9, struct.pack(f"{order}d", 1), order), order)
    size, heads = len(inner), []
    for i in range(depth):
        fields = element(5, struct.pack(f"{order}i", 8), order) + element(1, b"field".ljust(8, b"\0"), order)
        fields = {STRUCTURE: fields, OBJECT: element(1, b"x", order) + fields}.get(kind, b"")
        whole = matrix(kind, b"x" if i == depth - 1 else b"", fields, order)[8:]
        heads.append(struct.pack(f"{order}II", 14, len(whole) + size if stated is None else stated) + whole)
        size += 8 + len(whole)
    return b"".join(reversed(heads)) + inner


def matrix(kind: int, name: bytes, content: bytes, order: str = "<") -> bytes:
    head = element(6, struct.pack(f"{order}II", kind, 0), order) + element(5, struct.pack(f"{order}2i", 1, 1), order)
    return element(14, head + element(1, name, order) + content, order)


def file(content: bytes, order: bytes = b"IM") -> bytes:
    return b"MATLAB 5.0 MAT-file".ljust(124) + (b"\0\1" if order == b"IM" else b"\1\0") + order + content


HOSTILE = {
    "cells in cells": file(nested(DEPTH)),
    "objects": file(nested(DEPTH, kind=OBJECT)),
    "the other order": file(nested(DEPTH, ">"), b"MI"),
    "sizes that do not tell": file(nested(DEPTH, stated=48)),
    "sizes of flags that do not tell": file(nested(DEPTH).replace(struct.pack("<II", 6, 8), struct.pack("<II", 6, 48))),
    "an element before itself": file(struct.pack("<II", 1, 2**32 - 8)),
    "a cell of too many": file(matrix(CELL, b"x", b"").replace(struct.pack("<2i", 1, 1), b"\xff\xff\xff\x7f" * 2)),
    "unpacks to much": file(element(15, zlib.compress(bytes(1 << 28), 1))),
}


@pytest.fixture(scope="module")
def process() -> Iterator[Reading]:
    with reading("matlab") as started:
        yield started


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile(what: str, process: Reading) -> None:
    outcome = process.outcome(HOSTILE[what])
    assert outcome.startswith("refused: "), outcome
    assert "expected a MATLAB file with x" in outcome


@pytest.mark.parametrize("packed", [False, True])
def test_sound(packed: bool, process: Reading) -> None:
    from scipy.io import savemat

    content = io.BytesIO()
    wide = np.array([{"k": i} for i in range(3000)], object)
    variables = {"other": np.array([["a", np.zeros((3, 0))], [{"k": 1}, 1j]], object), "wide": wide, "x": np.arange(3)}
    savemat(content, variables, do_compression=packed)
    assert process.outcome(content.getvalue()) == "read"
