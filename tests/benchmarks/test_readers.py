"""Every reader that is compared hands out the same rows, so that the times are of the same work."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import data, disk
from benchmarks.readers import BLOCK, READERS

N, BATCH = 96, 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    source = np.random.default_rng(0).standard_normal((N, *data.SHAPE), np.float32).astype(np.float16)
    source[:, 0, 0] = np.arange(N)
    data.write_store(folder / "store", source, N, 64)
    data.write_h5(folder / "features.h5", source, N)
    data.write_tars(folder / "tars", source, N, 64)
    return folder


@pytest.mark.parametrize("name", READERS)
def test_all_rows_once(name: str, folder: Path) -> None:
    rows = []
    for batch in READERS[name](folder, BATCH):
        assert batch.shape[1:] == data.SHAPE
        rows += batch[:, 0, 0].int().tolist()
    assert sorted(rows) == list(range(N))
    assert rows != sorted(rows), "shuffled"


def test_each_way_of_the_disk_reads_all_bytes(folder: Path) -> None:
    shards = sum(file.stat().st_size for file in (folder / "store" / data.NAME / "c").rglob("*") if file.is_file())
    found = dict(disk.ways(folder))
    assert len(found) == len(disk.DEPTHS) * len(disk.SIZES)
    assert {way["nbytes"] for way in found.values()} == {shards}
    assert shards > N * data.ROW_NBYTES


def test_the_set_is_of_the_size_that_was_asked_for() -> None:
    assert abs(data.rows_for(10**9) * data.ROW_NBYTES - 10**9) <= BLOCK * data.ROW_NBYTES
