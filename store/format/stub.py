"""A stand-in for a feature set whose arrays are elsewhere: its group's zarr.json, and a folder for each kind, all empty."""

import os
from pathlib import Path

from store.format.layout import KINDS
from store.places.disk import PARTIAL, make_folder, write_file


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
