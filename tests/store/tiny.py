"""A set of a few rows that can be written at once, in parts, or as the extension of a smaller one."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, SPEC

SHARD = 32
INVALID = (3, 35, 45)  # rows
MAX = 256


@dataclass(frozen=True)
class Tiny:
    """What it holds; the contents of a row depend on its number and the array's name alone."""

    n: int = 40
    blocks: tuple[int, ...] = (3,)
    views: int = 1
    cls: bool = False
    lean: bool = False  # labels and tokens alone

    @cached_property
    def spec(self) -> FeatureSpec:
        return replace(SPEC, n_images=self.n, blocks=self.blocks, n_views=self.views, data=str(self.n), statistics=(), maps=())

    @cached_property
    def layouts(self) -> list[ArrayLayout]:
        out = [ArrayLayout("images/label", (self.n,), "int64", ("image",), SHARD)]
        if not self.lean:
            out.append(ArrayLayout("images/valid", (self.n,), "uint8", ("image",), SHARD))
        for block in self.blocks:
            for view in range(self.views):
                shape, dimensions = (self.n, 2, 3), ("image", "patch", "channel")
                out.append(ArrayLayout(f"patch/block{block}/view{view}", shape, "float16", dimensions, SHARD, codec="float16"))
            if self.cls:
                out.append(ArrayLayout(f"cls/block{block}/view0", (self.n, 3), "float16", ("image", "channel"), SHARD))
        return out

    @property
    def constants(self) -> dict[str, np.ndarray]:
        truths = np.arange(66_000, dtype=np.uint32).astype(np.uint8)  # two chunks
        return {} if self.lean else {"norm/weight": np.arange(3, dtype=np.float32), "images/segmentation/counts": truths}

    def values(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        (layout,) = (a for a in self.layouts if a.name == name)
        return all_rows(name, layout.shape[1:], layout.dtype)[start : self.n if stop is None else stop]

    def begin(self, path: str | Path, base: FeatureStore | None = None, skip: Sequence[tuple[str, int]] = ()) -> FeatureWriter:
        return FeatureWriter(path, self.spec, self.layouts, self.constants, base, None, skip, replaces=base is not None)

    def write(self, writer: FeatureWriter, unit: int, poison: bool = False) -> None:
        """One unit: what is asked for and no more. With `poison`, rows that the base has are wrong, and must not be used."""
        start, stop = first_row(writer, unit), self.layouts[0].rows(unit)[1]
        rows: dict[str, np.ndarray] = {}
        for name in writer.taking.arrays_to_compute(unit):
            rows[name] = self.values(name, start, stop).copy()
            if poison and writer.taking.base is not None and name in writer.taking.base.arrays:
                rows[name][: max(0, len(writer.taking.base) - start)] = 77
        writer.write_unit(unit, rows, notes(start, stop))

    def finish(self, writer: FeatureWriter) -> None:
        for unit in writer.missing_units():
            self.write(writer, unit)
        writer.finish(ATTRIBUTES)

    def make(self, path: Path, base: FeatureStore | None = None) -> Path:
        with self.begin(path, base) as writer:
            self.finish(writer)
        return path

    def expected(self, path: Path) -> Mapping[str, bytes]:
        """The files of this set, written at once to a new folder."""
        return files(self.make(path))


@cache
def all_rows(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if name == "images/label":
        return np.arange(MAX)
    if name == "images/valid":
        return (~np.isin(np.arange(MAX), INVALID)).astype("uint8")
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=(MAX, *shape)).astype(dtype)


def first_row(writer: FeatureWriter, unit: int) -> int:
    """The first row of a unit that is to be computed, one past its last if none is."""
    return min(
        [
            *writer.taking.rows_to_compute(unit, writer.taking.arrays_to_compute(unit)),
            writer.layouts["images/label"].rows(unit)[1],
        ]
    )


def notes(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"row": row, "id": str(row), "problem": "cut short"} for row in INVALID if start <= row < stop]
