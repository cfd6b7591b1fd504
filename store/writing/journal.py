"""What writers have done so far: a line each, synced, with its own digest."""

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


def process_journal() -> str:
    """Name of a journal that only this process writes, beside those of others that write the same feature set."""
    host = re.sub(r"[^\w.]", "_", socket.gethostname())
    return f"{JOURNAL}.{host}-{os.getpid()}-{time.time_ns()}"


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
    records = []
    for file in (folder / name for name in journals(folder)):
        for line in file.read_bytes().split(b"\n"):
            digest, _, content = line.partition(b" ")
            if digest == xxhash.xxh3_64_hexdigest(content).encode():
                try:
                    records.append(json.loads(content))
                except (ValueError, RecursionError) as error:
                    raise StoreError(f"{file} is not a journal ({error!r}); remove {folder} to start again") from error
    return records


def _line(record: Mapping[str, Any]) -> bytes:
    content = json.dumps(record).encode()
    return xxhash.xxh3_64_hexdigest(content).encode() + b" " + content + b"\n"
