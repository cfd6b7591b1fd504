"""Writing a feature set: shard by shard, staged and journalled, published by one rename."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zarr

from store.errors import StoreError
from store.layout import ATTRIBUTE, KINDS, ArrayLayout
from store.spec import FeatureSpec

JOURNAL = "journal.jsonl"


class FeatureWriter:
    """Writes one feature set. Work units are shards: unit u holds rows [u * shard_rows, (u + 1) * shard_rows).

    All arrays lie under `<parent>/.staging/<name>-<key>` until `finish` renames that folder to `path`. A unit counts once
    its files and its journal line are on disk; a writer that was killed goes on with `missing_units()`.

    Args:
        path: where the finished feature set will be.
        spec: what it holds.
        layouts: arrays with one row per image; all share `shard_rows`.
        constants: small arrays without an image axis (the final norm), by name.

    Raises:
        StoreError: `path` is occupied, or the staged part has another layout.
    """

    def __init__(
        self,
        path: Path,
        spec: FeatureSpec,
        layouts: Sequence[ArrayLayout],
        constants: Mapping[str, np.ndarray] | None = None,
    ):
        self.path, self.spec = Path(path), spec
        self.layouts = {layout.name: layout for layout in layouts}
        self.constants = dict(constants or {})
        self.n_units = next(iter(layouts)).n_shards
        self.staging = self.path.parent / ".staging" / f"{self.path.name}-{spec.key}"
        if self.path.is_file() or any(p for p in self.path.rglob("*") if not p.is_dir()):
            raise StoreError(f"{self.path} already holds files; give another --out, or remove it first")
        self.header = {
            "key": spec.key,
            "arrays": {n: [list(a.shape), a.dtype, a.shard_rows] for n, a in self.layouts.items()},
        }
        self.done: dict[int, dict[str, Any]] = {}
        if begun := self._journal():
            self._resume(begun)
        else:
            self._start()

    def _start(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(parents=True)
        group = zarr.open_group(self.staging, mode="w", zarr_format=3)
        for kind in KINDS:
            group.require_group(kind)
        for layout in self.layouts.values():
            group.create_array(**layout.zarr_arguments())
        for name, values in self.constants.items():
            layout = _constant(name, values)
            group.create_array(**layout.zarr_arguments())
            _write(self.staging / layout.file(0), layout.encode(0, values))
        self._append(self.header)

    def _journal(self) -> list[str]:
        """Lines of the journal, if there is one; a last line that was cut short by a kill is dropped."""
        file = self.staging / JOURNAL
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [line for line in lines if line.endswith("\n")]

    def _resume(self, whole: Sequence[str]) -> None:
        records = [json.loads(line) for line in whole]
        if records[0] != self.header:
            raise StoreError(f"{self.staging} was begun with another layout; remove that folder to start again")
        _write(self.staging / JOURNAL, "".join(whole).encode())
        for record in records[1:]:
            if all(_size(self.staging / s["file"]) == s["nbytes"] for s in record["shards"]):
                self.done[record["unit"]] = record

    def missing_units(self) -> list[int]:
        """Units that are not written yet, in order."""
        return [u for u in range(self.n_units) if u not in self.done]

    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write one shard of every array; `rows` has [rows of the unit, ...] for each name, `notes` its invalid rows."""
        assert rows.keys() == self.layouts.keys(), sorted(rows.keys() ^ self.layouts.keys())
        shards = []
        for name, layout in self.layouts.items():
            data = layout.encode(unit, rows[name])
            _write(self.staging / layout.file(unit), data)
            shards.append(_record(layout, unit, rows[name], data))
        record = {"unit": unit, "shards": shards, "invalid": list(notes)}
        self._append(record)
        self.done[unit] = record

    def _append(self, record: Mapping[str, Any]) -> None:
        with (self.staging / JOURNAL).open("a") as journal:
            journal.write(json.dumps(record) + "\n")
            journal.flush()
            os.fsync(journal.fileno())

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the attributes of arrays and group, and move the feature set to its place.

        `attributes`: what a reader wants to know beside the spec (names of encoder and classes, problems).
        """
        if missing := self.missing_units():
            raise StoreError(f"{self.staging}: {len(missing)} of {self.n_units} shards are not written yet, first {missing[0]}")
        invalid = [note for unit in sorted(self.done) for note in self.done[unit]["invalid"]]
        shards: dict[str, list[dict[str, Any]]] = {name: [] for name in self.layouts}
        for unit in sorted(self.done):
            for shard in self.done[unit]["shards"]:
                shards[shard["array"]].append(_attribute(shard))
        for name, values in self.constants.items():
            layout = _constant(name, values)
            shards[name] = [_attribute(_record(layout, 0, values, layout.encode(0, values)))]
        digests = {name: self._describe(name, {"key": self.spec.key, "shards": records}) for name, records in shards.items()}
        described = {
            "key": self.spec.key,
            "spec": self.spec.to_dict(),
            **attributes,
            "invalid": invalid,
            "arrays": digests,
        }
        self._describe("", described)
        if self.path.exists():
            shutil.rmtree(self.path)  # empty folders only: __init__ refused anything else
        os.rename(self.staging, self.path)
        with contextlib.suppress(OSError):  # another set may be staged beside this one
            self.staging.parent.rmdir()
        (self.path / JOURNAL).unlink()  # after the rename: whoever is killed before it goes on with the journal
        _sync_folder(self.path.parent)

    def _describe(self, name: str, attributes: Mapping[str, Any]) -> str:
        """Put our attributes into a zarr.json; returns the digest of the file, by which the group vouches for its arrays."""
        file = self.staging / name / "zarr.json"
        meta = json.loads(file.read_text())
        meta["attributes"] = {ATTRIBUTE: attributes}
        data = (json.dumps(meta, indent=1) + "\n").encode()
        _write(file, data)
        return xxhash.xxh3_128_hexdigest(data)


def _constant(name: str, values: np.ndarray) -> ArrayLayout:
    n = len(values)
    return ArrayLayout(name, values.shape, values.dtype.name, ("channel",), shard_rows=n, chunk_rows=n)


def _record(layout: ArrayLayout, shard: int, rows: np.ndarray, data: bytes) -> dict[str, Any]:
    digest = xxhash.xxh3_128_hexdigest(data)
    return {
        "array": layout.name,
        "file": layout.file(shard),
        "rows": list(layout.rows(shard)),
        "nbytes": len(data),
        "xxh3_128": digest,
        "nonfinite": int((~np.isfinite(rows)).sum()) if rows.dtype.kind == "f" else 0,
    }


def _attribute(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the array's own attributes say of a shard: the record of the journal without what its place says already."""
    return {name: value for name, value in record.items() if name not in ("array", "file")}


def _write(path: Path, data: bytes) -> None:
    """All or nothing: a reader sees the whole file or none, also after power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None
