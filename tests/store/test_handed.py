"""Units that a driver hands out to writers elsewhere: same bytes, and nobody disturbs anybody."""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

from store import FeatureWriter, StoreError
from store.writing import shard_writer
from store.writing.handed_writer import HandedWriter
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, CONSTANTS, SPEC, layouts, notes_of, unit_of

Contents = dict[str, np.ndarray]


@pytest.fixture
def driver(tmp_path: Path) -> FeatureWriter:
    return FeatureWriter(tmp_path / "new", SPEC, layouts(), CONSTANTS)


@pytest.fixture
def worker(driver: FeatureWriter) -> HandedWriter:
    return HandedWriter(driver.staging, layouts())


def record(worker: HandedWriter, contents: Contents, unit: int) -> dict:
    worker.expect(unit, list(worker.layouts))
    return worker.write_unit(unit, unit_of(contents, layouts(), unit), notes_of(layouts(), unit))


def test_same_bytes_also_where_a_worker_comes_too_late(
    driver: FeatureWriter, worker: HandedWriter, contents: Contents, written: Path, tmp_path: Path
) -> None:
    late = HandedWriter(driver.staging, layouts())
    for unit in driver.missing_units():
        driver.add(record(worker, contents, unit))
    driver.add(record(late, contents, 1))
    driver.finish(ATTRIBUTES)
    assert files(tmp_path / "new") == files(written)
    assert not (tmp_path / ".staging").exists(), "no folder of a worker is left"
    with pytest.raises(StoreError, match="is gone, so unit 1 is not needed any more"):
        record(late, contents, 1)
    assert files(tmp_path / "new") == files(written)


def test_two_results_of_one_unit(driver: FeatureWriter, worker: HandedWriter, contents: Contents) -> None:
    driver.add(record(worker, contents, 0))
    other = {name: values[::-1].copy() for name, values in contents.items()}
    with pytest.raises(
        StoreError, match=r"unit 0 of .*new was computed twice, and .* differs; let workers run on machines of one"
    ):
        driver.add(record(worker, other, 0))


def test_a_worker_that_comes_too_late_with_other_bytes(driver: FeatureWriter, worker: HandedWriter, contents: Contents) -> None:
    late = HandedWriter(driver.staging, layouts())
    for unit in driver.missing_units():
        driver.add(record(worker, contents, unit))
    record(late, {name: values[::-1].copy() for name, values in contents.items()}, 0)  # taken for dead: nobody asks it
    with pytest.raises(StoreError, match=r"unit 0 of .* is not what the journals say; give the command again"):
        driver.finish(ATTRIBUTES)
    assert not driver.path.exists()


def test_a_folder_that_is_not_the_same_everywhere(driver: FeatureWriter, contents: Contents, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    elsewhere = HandedWriter(tmp_path / "elsewhere", layouts())
    with pytest.raises(StoreError, match=r"unit 0 of .*, but .* is not in .* as it says; the folder must be the same on all"):
        driver.add(record(elsewhere, contents, 0))


def test_a_full_disk(worker: HandedWriter, contents: Contents, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(shard_writer, "write_shard", full)
    with pytest.raises(
        StoreError, match=r"no space left while writing unit 0 in .*\. Free some, and give the same command again"
    ):
        record(worker, contents, 0)


def test_a_driver_that_begins_removes_what_workers_left(driver: FeatureWriter, worker: HandedWriter, tmp_path: Path) -> None:
    shutil.copytree(driver.staging, tmp_path / ".staging" / f"{driver.staging.name}.workers" / "old")
    driver.close()
    assert not any(path.name.endswith(".workers") for path in (tmp_path / ".staging").iterdir())
