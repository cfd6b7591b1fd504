"""Folders of sets that are not whole: what writers keep with the arrays until they are; a stub, whose arrays are elsewhere."""

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from store.format.layout import KINDS
from store.places.disk import PARTIAL, make_folder, write_file
from store.places.place import Place

WRITING = ".writing"  # folder in the set; removed when the set is whole, and no part of it
HEADER = f"{WRITING}/header.json"
RECORDS = f"{WRITING}/units"
CLAIMS = f"{WRITING}/claims"
UNNAMED = f"{WRITING}/unnamed"  # in a folder: files that have no name yet


def record_name(unit: int) -> str:
    """The file that says that a unit is written."""
    return f"{RECORDS}/{unit}.json"


def record_bytes(record: dict[str, Any]) -> bytes:
    """The content of a record's file: the digest of the second line, then that line."""
    content = json.dumps(record).encode()
    return xxhash.xxh3_64_hexdigest(content).encode() + b"\n" + content + b"\n"


def read_record(content: bytes) -> dict[str, Any]:
    """A record from the content of its file.

    Raises:
        ValueError: it was changed or cut.
    """
    digest, _, line = content.partition(b"\n")
    if digest != xxhash.xxh3_64_hexdigest(line.removesuffix(b"\n")).encode():
        raise ValueError("its digest is another")
    return json.loads(line)


def base_at(place: Place) -> str | None:
    """The address of the set from which one that is being written takes rows over; None without one."""
    try:
        return json.loads(place.content(HEADER) or b"")["base"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def is_of_writers(name: str) -> bool:
    """Whether a file, by its path in the set, is kept by writers and no part of the set."""
    return name.startswith(f"{WRITING}/")


class Progress(NamedTuple):
    """Units of a set that are written, and all; the same for images."""

    done: int
    n_units: int
    images_done: int
    n_images: int


def progress_at(place: Place) -> Progress | None:
    """How far a set is that is being written; None where none is, or its header makes no sense."""
    if (content := place.content(HEADER)) is None:
        return None
    try:
        shape, _, shard_rows, _ = next(iter(json.loads(content)["arrays"].values()))
        n_units = math.ceil(shape[0] / shard_rows)
        done = [unit for unit in range(n_units) if place.size(record_name(unit)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, ArithmeticError, RecursionError):
        return None
    return Progress(len(done), n_units, sum(min(shard_rows, shape[0] - unit * shard_rows) for unit in done), shape[0])


def write_stub(folder: Path, content: bytes) -> None:
    """Write a stub; `content` is the group's zarr.json, to the byte."""
    for kind in KINDS:
        make_folder(folder / kind)
    write_file(folder / "zarr.json", [content])


def is_stub(folder: Path) -> bool:
    """Whether a folder holds the group's zarr.json, and no other file."""
    return (folder / "zarr.json").is_file() and holds_only(folder, "zarr.json")


def holds_only(folder: Path, *names: str) -> bool:
    """Whether a folder and those below it hold no file but these, by path inside it; halves left by a kill don't count."""
    for where, _, files in os.walk(folder):
        paths = (Path(where, file).relative_to(folder).as_posix() for file in files if not file.endswith(PARTIAL))
        if any(name not in names for name in paths):
            return False
    return not folder.is_file()
