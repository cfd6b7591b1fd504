"""A small feature set with every kind of array, and ways to write and to damage one."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zarr

from store import ArrayLayout, FeatureSpec, FeatureWriter
from store.format.reader import with_digest

N, SHARD, T, D = 150, 64, 3, 5  # three shards, the last one short and no multiple of a chunk
INVALID = (7, 9, 100)  # rows, in two of the shards

SPEC = FeatureSpec(
    weights="0" * 32,
    architecture='{"name": "vit"}',
    transform={"input_size": [3, 8, 8], "mean": [0.5, 0.5, 0.5]},
    data="1" * 32,
    n_images=N,
    blocks=(3, 5),
    statistics=("cls_self",),
    maps=("centre/block5", "cls/block5"),
    vectors=("average/block5", "pooled"),
)
ATTRIBUTES = {"encoder": "vit", "norm_eps": 1e-6, "classes": ["cat", "dog", "owl"], "problems": []}
CONSTANTS = {"norm/weight": np.linspace(0, 1, D, dtype=np.float32), "norm/bias": np.linspace(-1, 0, D, dtype=np.float32)}


def layouts(n: int = N, shard_rows: int = SHARD) -> list[ArrayLayout]:
    return [
        ArrayLayout("images/id", (n, 9), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout("images/digest", (n, 16), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout("images/label", (n,), "int64", ("image",), shard_rows),
        ArrayLayout("images/size", (n, 2), "int32", ("image", "side"), shard_rows),
        ArrayLayout("images/valid", (n,), "uint8", ("image",), shard_rows),
        ArrayLayout("patch/block3/view0", (n, T, D), "float16", ("image", "patch", "channel"), shard_rows),
        ArrayLayout("patch/block5/view0", (n, T, D), "float16", ("image", "patch", "channel"), shard_rows),
        ArrayLayout("cls/block5/view0", (n, D), "float16", ("image", "channel"), shard_rows),
        ArrayLayout("registers/block5/view0", (n, 2, D), "float16", ("image", "register", "channel"), shard_rows),
        ArrayLayout("average/block5/view0", (n, D), "float16", ("image", "channel"), shard_rows),
        ArrayLayout("pooled/view0", (n, D), "float16", ("image", "channel"), shard_rows),
        ArrayLayout("statistics/cls_self/view0", (n, 6, 2), "float32", ("image", "block", "head"), shard_rows),
        ArrayLayout("attention/cls/block5/view0", (n, 2, T), "float16", ("image", "head", "patch"), shard_rows),
        ArrayLayout("attention/centre/block5/view0", (n, 2, T), "float16", ("image", "head", "patch"), shard_rows),
    ]


def values(arrays: list[ArrayLayout], seed: int = 0) -> dict[str, np.ndarray]:
    """Arbitrary contents; ids and labels are sensible, every other bit pattern may occur, NaN among them."""
    generator = np.random.default_rng(seed)
    out = {}
    for a in arrays:
        out[a.name] = np.frombuffer(generator.bytes(a.row_nbytes * a.shape[0]), a.dtype).reshape(a.shape).copy()
        if a.name == "images/label":
            out[a.name] = np.arange(a.shape[0]) % 3
        elif a.name == "images/valid":
            out[a.name][:] = ~np.isin(np.arange(a.shape[0]), INVALID)
        elif a.name == "images/id":
            ids = b"".join(f"é{i}".encode().ljust(9, b"\0") for i in range(a.shape[0]))
            out[a.name] = np.frombuffer(ids, np.uint8).reshape(a.shape)
        elif a.dtype.startswith("float"):
            out[a.name].flat[:3] = np.inf, -np.inf, np.nan
    return out


def notes_of(arrays: list[ArrayLayout], unit: int) -> list[dict[str, Any]]:
    start, stop = arrays[0].rows(unit)
    return [{"row": row, "id": f"é{row}", "problem": f"é{row}: cut short"} for row in INVALID if start <= row < stop]


def unit_of(contents: Mapping[str, np.ndarray], arrays: list[ArrayLayout], unit: int) -> dict[str, np.ndarray]:
    return {a.name: contents[a.name][slice(*a.rows(unit))] for a in arrays}


def write(path: Path, arrays: list[ArrayLayout], contents: Mapping[str, np.ndarray], **changes: Any) -> FeatureSpec:
    """A finished feature set at `path`; `changes` go into its spec."""
    spec = replace(SPEC, **{"n_images": arrays[0].shape[0], **changes})
    writer = FeatureWriter(path, spec, arrays, CONSTANTS)
    for unit in writer.missing_units():
        writer.write_unit(unit, unit_of(contents, arrays, unit), notes_of(arrays, unit))
    writer.finish(ATTRIBUTES)
    return spec


def edit(path: Path, change: Callable[[dict[str, Any]], Any], name: str = "", vouch: bool = False) -> None:
    """Change a zarr.json. The group's own digest is made right again; with `vouch`, its digest of an array's file too."""
    file = path / name / "zarr.json"
    meta = json.loads(file.read_text())
    change(meta)
    put(path, json.dumps(meta).encode() if name else with_digest(meta), name, vouch)


def put(path: Path, content: bytes, name: str = "", vouch: bool = False) -> None:
    """Replace a zarr.json; with `vouch`, the group says that this is what was written."""
    (path / name / "zarr.json").write_bytes(content)
    if vouch:
        digest = xxhash.xxh3_128_hexdigest(content)
        edit(path, lambda group: group["attributes"]["beyondcls"]["arrays"].update({name: digest}))


def put_at(*way: Any) -> Callable[[Any], None]:
    """Puts the last of `way` where the others lead in a JSON document."""
    *steps, last, value = way

    def change(at: Any) -> None:
        for step in steps:
            at = at[step]
        at[last] = value

    return change


def flip(file: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file; `at` may count from its end."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def shard_bytes(layout: ArrayLayout, shard: int, rows: np.ndarray) -> bytes:
    data, padding = layout.encode(shard, rows)
    return bytes(data) + bytes(padding) + layout.tail(shard, data, padding)


def zarr_twin(folder: Path, layout: ArrayLayout) -> zarr.Array:
    """The same array as zarr-python makes it, empty."""
    group = zarr.open_group(folder, mode="a", zarr_format=3)
    tail = layout.shape[1:]
    return group.create_array(
        layout.name,
        shape=layout.shape,
        dtype=layout.dtype,
        chunks=(layout.chunk_rows, *tail),
        shards=(layout.shard_rows, *tail),
        compressors=None,
        filters=None,
        fill_value=0,
        dimension_names=layout.dimensions,
        config={"write_empty_chunks": True},
    )


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Bit for bit, NaN and all."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.fixture(scope="session")
def contents() -> dict[str, np.ndarray]:
    return values(layouts())


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, np.ndarray]) -> Path:
    """A feature set, written without interruption. Not to be changed."""
    out = tmp_path_factory.mktemp("written") / "one"
    write(out, layouts(), contents)
    return out


@pytest.fixture(scope="session")
def computed_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same key, shapes and sizes, but other bytes, as another machine may compute them. Not to be changed."""
    out = tmp_path_factory.mktemp("elsewhere") / "other"
    write(out, layouts(), values(layouts(), seed=1))
    return out


@pytest.fixture(scope="session")
def written_small(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, np.ndarray]) -> Path:
    """The same with two arrays: files cost more than bytes."""
    out = tmp_path_factory.mktemp("small") / "one"
    write(out, [a for a in layouts() if a.name in ("images/label", "patch/block5/view0")], contents)
    return out


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of what each digest was computed of, from here on."""
    seen: list[int] = []
    digest = xxhash.xxh3_128_digest
    monkeypatch.setattr(xxhash, "xxh3_128_digest", lambda data: (seen.append(len(data)), digest(data))[1])
    return seen


@pytest.fixture
def small(tmp_path: Path, written_small: Path) -> Path:
    """A copy of it that a test may damage."""
    return shutil.copytree(written_small, tmp_path / "features" / "one")


@pytest.fixture
def path(tmp_path: Path, written: Path) -> Path:
    """A copy of it that a test may damage."""
    return shutil.copytree(written, tmp_path / "features" / "one")


def displacement(visited: np.ndarray) -> float:
    """Mean distance of a row's place from its place on disk, as a share of what a full shuffle gives (n / 3 places)."""
    place = np.argsort(visited, kind="stable")
    return float(np.abs(place - np.arange(len(place))).mean() / (len(place) / 3))
