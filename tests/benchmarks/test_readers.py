"""Every reader that is compared hands out the same rows, so that the times are of the same work."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from numpy.typing import NDArray

from benchmarks import data, disk, readers
from benchmarks.readers import BLOCK, READERS, Reader
from store.codecs import CODECS, SCALE

N, BATCH = 80, 64  # the last block and the last batch are short
Parts = Mapping[str, NDArray]


@pytest.fixture(scope="module")
def rows() -> dict[str, Parts]:
    """Tokens by codec, parts as they are stored; the first number of a row is its index."""
    random = np.random.default_rng(0)
    parts: dict[str, Parts] = {
        "float16": {"": random.standard_normal((N, *data.SHAPE), np.float32).astype(np.float16)},
        "int8": {
            "": random.integers(-127, 128, (N, *data.SHAPE), np.int8),
            SCALE: random.random((N, data.SHAPE[0]), np.float32) + np.float32(0.5),
        },
    }
    for of in parts.values():
        of[""][:, 0, 0] = np.arange(N)
    return parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, rows: dict[str, Parts]) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    forms = {reader.form for reader in READERS.values() if reader.lacks() is None}
    for codec, parts in rows.items():
        (folder / codec).mkdir()
        for form in forms:
            data.FORMS[form](folder / codec / form, parts, N, 64)
    return folder


@pytest.fixture(autouse=True)
def zarr_as_it_was() -> Iterator[None]:
    """A reader sets zarr-python's configuration for its whole process, which here runs other tests, too."""
    yield
    zarr.config.reset()


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, reader in READERS.items() for way in reader.ways])
def test_all_rows_once_as_they_are_stored(name: str, way: str, folder: Path, rows: dict[str, Parts]) -> None:
    first, *others = READERS[name].ways
    codec = "float16" if others and way == first else "int8"  # which has scales, too
    if reason := READERS[name].lacks(way):
        pytest.skip(reason)
    epoch = READERS[name].ways[way](folder / codec, BATCH)
    next(epoch())  # as in a warm-up, which ends before the epoch does
    seen = []
    for batch in epoch():
        numbers = batch[0][:, 0, 0].long().numpy()
        assert len(batch) == len(rows[codec])
        for part, stored in zip(batch, rows[codec].values(), strict=True):
            assert torch.equal(part, torch.from_numpy(stored[numbers]))
        seen += numbers.tolist()
    assert sorted(seen) == list(range(N))
    assert seen != sorted(seen), "shuffled"


def test_stored_as_the_codec_encodes() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, *data.SHAPE), np.float32).astype(np.float16)
    assert np.array_equal(data.parts_of(tokens, "float16")[""], tokens)
    parts = {suffix: torch.from_numpy(part) for suffix, part in data.parts_of(tokens, "int8").items()}
    values = torch.from_numpy(tokens).float()
    assert ((CODECS["int8"].decode(parts) - values).abs() <= CODECS["int8"].bound(values)).all()


def test_what_is_measured(
    folder: Path, rows: dict[str, Parts], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(readers, "keep_freed_memory", lambda: True)  # it is for the whole process
    way = next(iter(READERS["npy"].ways))
    monkeypatch.setattr("sys.argv", ["readers", "npy", way, str(folder), str(BATCH), "float16,int8", "cold,warm"])
    readers.main()
    took = json.loads(capsys.readouterr().out)
    for codec, parts in rows.items():
        for state in ("cold", "warm"):
            assert took[codec][state]["nbytes"] == sum(part.nbytes for part in parts.values())
            assert took[codec][state]["seconds"] > 0 < took[codec][state]["peak"]


def test_what_is_missing_is_named() -> None:
    ways = dict.fromkeys(("plain", "plain, fast"), READERS["npy"].ways["map, 8 threads"])
    assert Reader("ours", "store", None, ways).lacks() is None
    assert Reader("a peer", "npy", "no-such-peer", ways).lacks() == "no-such-peer is not installed: pip install no-such-peer"
    newer = Reader("a peer", "npy", "numpy", ways, {"fast": "1000.1"})
    assert newer.lacks("plain") is None
    assert newer.lacks("plain, fast") == f"numpy is {np.__version__}: pip install 'numpy>=1000.1'"


def test_each_way_of_the_disk_reads_all_bytes(folder: Path) -> None:
    shards = sum(file.stat().st_size for file in (folder / "float16/store" / data.NAME / "c").rglob("*") if file.is_file())
    found = dict(disk.ways(folder / "float16"))
    assert len(found) == len(disk.DEPTHS) * len(disk.SIZES)
    assert {way["nbytes"] for way in found.values()} == {shards}
    assert shards > N * data.ROW_NBYTES


def test_the_set_is_of_the_size_that_was_asked_for() -> None:
    assert abs(data.rows_for(10**9) * data.ROW_NBYTES - 10**9) <= BLOCK * data.ROW_NBYTES
