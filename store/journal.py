"""What a writer has done so far: a line each, synced, with its own digest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from store.disk import append, write_file
from store.errors import StoreError

JOURNAL = "journal"


def add_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a folder's journal and wait until it is on the disk."""
    append(folder / JOURNAL, _line(record))


def write_records(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace a folder's journal: all of it, or not at all."""
    write_file(folder / JOURNAL, [_line(record) for record in records])


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Records of a folder's journal; lines that are not what was written, as a kill may cut the last, are left out.

    Raises: StoreError: a line is whole, but no JSON.
    """
    file = folder / JOURNAL
    lines = file.read_bytes().split(b"\n") if file.is_file() else []
    records = []
    for line in lines:
        digest, _, content = line.partition(b" ")
        if digest == xxhash.xxh3_64_hexdigest(content).encode():
            try:
                records.append(json.loads(content))
            except (ValueError, RecursionError) as error:
                raise StoreError(f"{file} is no journal ({error!r}); remove {folder} to start again") from error
    return records


def _line(record: Mapping[str, Any]) -> bytes:
    content = json.dumps(record).encode()
    return xxhash.xxh3_64_hexdigest(content).encode() + b" " + content + b"\n"
