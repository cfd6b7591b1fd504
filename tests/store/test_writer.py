"""Staging, journal, publication: after any interruption, the result is the same bytes or an error."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

from store import FeatureWriter, StoreError
from tests.folders import files
from tests.store.conftest import (
    ATTRIBUTES,
    CONSTANTS,
    SHARD,
    SPEC,
    layouts,
    notes_of,
    unit_of,
)

Contents = dict[str, np.ndarray]


def _begin(path: Path) -> FeatureWriter:
    return FeatureWriter(path, SPEC, layouts(), CONSTANTS)


def _go_on(writer: FeatureWriter, contents: Contents) -> None:
    for unit in writer.missing_units():
        writer.write_unit(unit, unit_of(contents, layouts(), unit), notes_of(layouts(), unit))
    writer.finish(ATTRIBUTES)


def test_a_unit_whose_files_are_not_whole_is_written_again(tmp_path: Path, written: Path, contents: Contents) -> None:
    with _begin(tmp_path / "killed") as writer:
        for unit in (0, 1):
            writer.write_unit(unit, unit_of(contents, layouts(), unit), notes_of(layouts(), unit))
    os.truncate(writer.staging / "images/label/c/1", 8)
    again = _begin(tmp_path / "killed")
    assert again.missing_units() == [1, 2]
    _go_on(again, contents)
    assert files(tmp_path / "killed") == files(written)


def test_another_layout_is_staged(tmp_path: Path) -> None:
    _begin(tmp_path / "new")
    with pytest.raises(StoreError, match="begun with other shards"):
        FeatureWriter(tmp_path / "new", SPEC, layouts(shard_rows=2 * SHARD), CONSTANTS)


def test_another_key_is_staged_beside(tmp_path: Path, contents: Contents) -> None:
    _begin(tmp_path / "new").write_unit(0, unit_of(contents, layouts(), 0))
    other = FeatureWriter(tmp_path / "new", replace(SPEC, weights="2" * 32), layouts(), CONSTANTS)
    assert other.missing_units() == [0, 1, 2]


def test_finish_needs_every_unit(tmp_path: Path, contents: Contents) -> None:
    writer = _begin(tmp_path / "new")
    writer.write_unit(1, unit_of(contents, layouts(), 1))
    with pytest.raises(StoreError, match="2 of 3 units are not written yet, first 0"):
        writer.finish(ATTRIBUTES)


def test_occupied_path(tmp_path: Path, written: Path) -> None:
    with pytest.raises(StoreError, match="already holds files"):
        _begin(written)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file, expected a folder"):
        _begin(tmp_path / "file")
    assert not (tmp_path / ".staging").exists(), "it holds no lock"
    (tmp_path / "file").unlink()
    _begin(tmp_path / "file").close()


def test_empty_folders_at_the_path_give_way(tmp_path: Path, written: Path, contents: Contents) -> None:
    (tmp_path / "empty" / "patch").mkdir(parents=True)
    _go_on(_begin(tmp_path / "empty"), contents)
    assert files(tmp_path / "empty") == files(written)


def test_nonfinite_values_are_counted(written: Path, contents: Contents) -> None:
    for a in layouts():
        shards = zarr.open_array(written / a.name, mode="r").attrs["beyondcls"]["shards"]  # type: ignore[index,call-overload]
        counted = [int((~np.isfinite(contents[a.name][slice(*s["rows"])])).sum()) for s in shards]  # type: ignore[index,union-attr,misc,call-overload]
        assert [s["nonfinite"] for s in shards] == counted  # type: ignore[index,union-attr,call-overload]


def test_wrong_rows_are_our_own_error(tmp_path: Path, contents: Contents) -> None:
    writer = _begin(tmp_path / "new")
    with pytest.raises(AssertionError):
        writer.write_unit(2, unit_of(contents, layouts(), 1))
    unit = unit_of(contents, layouts(), 0)
    with pytest.raises(AssertionError):
        writer.write_unit(0, unit | {"images/label": unit["images/label"].astype("int32")})
    del unit["images/label"]
    with pytest.raises(AssertionError):
        writer.write_unit(0, unit)
    assert writer.missing_units() == [0, 1, 2]
