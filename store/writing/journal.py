"""What writers have done so far: a line each, synced, with its own digest."""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from store.errors import StoreError
from store.places.disk import PARTIAL, append, write_file

JOURNAL = "journal"


def add_record(folder: Path, record: Mapping[str, Any], name: str = JOURNAL) -> None:
    """Append a record to a journal in a folder and wait until it is on the disk."""
    append(folder / name, _line(record))


def write_records(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Make these records a folder's only journal: all of them, or none."""
    write_file(folder / JOURNAL, [_line(record) for record in records])
    for name in journals(folder)[1:]:
        (folder / name).unlink()


def process_name() -> str:
    """A name that only one process has."""
    host = re.sub(r"[^\w.]", "_", socket.gethostname())
    return f"{host}-{os.getpid()}-{time.time_ns()}"


def journals(folder: Path) -> list[str]:
    """Names of the journals in a folder, first the one that begins with the header; empty without it."""
    if not (folder / JOURNAL).is_file():
        return []
    return [JOURNAL, *sorted(file.name for file in folder.glob(f"{JOURNAL}.*") if not file.name.endswith(PARTIAL))]


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Records of a folder's journals; lines that were cut (a kill may cut the last) or changed are left out.

    Raises:
        StoreError: a line is whole, but not JSON.
    """
    return Journals(folder).new_records()


class Journals:
    """Reads the journals of a folder while processes write them, each line once."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._read: dict[str, int] = {}  # bytes of each file
        self._first = -1  # inode: a journal into which all were joined is another file, and is read anew

    def new_records(self) -> list[dict[str, Any]]:
        """Records since the last call; those of all journals, if they were joined meanwhile.

        Raises:
            StoreError: a line is whole, but not JSON.
        """
        records = []
        with contextlib.suppress(FileNotFoundError):  # joined, or published
            for name in journals(self._folder):
                with (self._folder / name).open("rb") as file:
                    if name == JOURNAL and os.fstat(file.fileno()).st_ino != self._first:
                        self._first, self._read = os.fstat(file.fileno()).st_ino, {}
                    begin = file.seek(self._read.get(name, 0))
                    lines = file.read().split(b"\n")
                # The last one is still being written, or a kill has cut it, perhaps by its end alone: it is read again.
                self._read[name] = begin + sum(len(line) + 1 for line in lines[:-1])
                records += [record for line in lines if (record := self._record(line, name)) is not None]
        return records

    def _record(self, line: bytes, name: str) -> dict[str, Any] | None:
        digest, _, content = line.partition(b" ")
        if digest != xxhash.xxh3_64_hexdigest(content).encode():
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{self._folder / name} is not a journal ({error!r}); remove {self._folder} to start again"
            ) from error


def _line(record: Mapping[str, Any]) -> bytes:
    content = json.dumps(record).encode()
    return xxhash.xxh3_64_hexdigest(content).encode() + b" " + content + b"\n"
