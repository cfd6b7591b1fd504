"""Staging, journal, publication: whatever happens on the way, the result is the same bytes or an error."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

from store import ArrayLayout, FeatureStore, FeatureWriter, StoreError
from store.writing.journal import JOURNAL
from tests.folders import files
from tests.store.conftest import (
    ATTRIBUTES,
    CONSTANTS,
    INVALID,
    SHARD,
    SPEC,
    layouts,
    notes_of,
    same,
    unit_of,
    values,
    write,
)

Contents = dict[str, np.ndarray]


def _begin(path: Path) -> FeatureWriter:
    return FeatureWriter(path, SPEC, layouts(), CONSTANTS)


def _go_on(writer: FeatureWriter, contents: Contents) -> None:
    for unit in writer.missing_units():
        writer.write_unit(unit, unit_of(contents, layouts(), unit), notes_of(layouts(), unit))
    writer.finish(ATTRIBUTES)


def test_nothing_is_at_the_path_before_finish(tmp_path: Path, contents: Contents) -> None:
    out = tmp_path / "new"
    writer = _begin(out)
    writer.write_unit(0, unit_of(contents, layouts(), 0))
    assert not out.exists()
    assert writer.staging == tmp_path / ".staging" / f"new-{SPEC.key}"


def test_nothing_is_left_behind(written: Path) -> None:
    assert not (written.parent / ".staging").exists()
    assert not [name for name in files(written) if name.endswith((".partial", JOURNAL))]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_unit_whose_files_are_not_whole_is_written_again(
    tmp_path: Path, written: Path, contents: Contents, damage: str
) -> None:
    out = tmp_path / "killed"
    writer = _begin(out)
    for unit in (0, 1):
        writer.write_unit(unit, unit_of(contents, layouts(), unit), notes_of(layouts(), unit))
    shard = writer.staging / "images/label/c/1"
    writer.close()
    if damage == "missing":
        shard.unlink()
    else:
        os.truncate(shard, 8)
    again = _begin(out)
    assert again.missing_units() == [1, 2]
    _go_on(again, contents)
    assert files(out) == files(written)


def test_order_of_units_does_not_matter(tmp_path: Path, written: Path, contents: Contents) -> None:
    out = tmp_path / "turned"
    writer = _begin(out)
    for unit in (2, 0, 1):
        writer.write_unit(unit, unit_of(contents, layouts(), unit), notes_of(layouts(), unit))
    writer.finish(ATTRIBUTES)
    assert files(out) == files(written)


def test_another_layout_is_staged(tmp_path: Path) -> None:
    _begin(tmp_path / "new")
    with pytest.raises(StoreError, match="another layout; remove that folder"):
        FeatureWriter(tmp_path / "new", SPEC, layouts(shard_rows=2 * SHARD), CONSTANTS)


def test_another_key_is_staged_beside(tmp_path: Path, contents: Contents) -> None:
    _begin(tmp_path / "new").write_unit(0, unit_of(contents, layouts(), 0))
    other = FeatureWriter(tmp_path / "new", replace(SPEC, weights="2" * 32), layouts(), CONSTANTS)
    assert other.missing_units() == [0, 1, 2]


def test_finish_needs_every_unit(tmp_path: Path, contents: Contents) -> None:
    writer = _begin(tmp_path / "new")
    writer.write_unit(1, unit_of(contents, layouts(), 1))
    with pytest.raises(StoreError, match="2 of 3 shards are not written yet, first 0"):
        writer.finish(ATTRIBUTES)


def test_occupied_path(tmp_path: Path, written: Path) -> None:
    with pytest.raises(StoreError, match="already holds files"):
        _begin(written)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="already holds files"):
        _begin(tmp_path / "file")


def test_empty_folders_at_the_path_give_way(tmp_path: Path, written: Path, contents: Contents) -> None:
    (tmp_path / "empty" / "patch").mkdir(parents=True)
    _go_on(_begin(tmp_path / "empty"), contents)
    assert files(tmp_path / "empty") == files(written)


def test_invalid_rows_are_recorded(written: Path) -> None:
    store = FeatureStore.open(written)
    assert store.attributes["invalid"] == notes_of(layouts(), 0) + notes_of(layouts(), 1)
    assert [note["row"] for note in store.attributes["invalid"]] == np.flatnonzero(~store.valid).tolist() == list(INVALID)


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


def test_shards_shorter_than_the_default(tmp_path: Path) -> None:
    """A set smaller than one shard has one short file an array."""
    arrays = [ArrayLayout("images/label", (5,), "int64", ("image",))]
    contents = values(arrays)
    write(tmp_path / "small", arrays, contents)
    n_chunks = arrays[0].shard_rows // 32
    assert (tmp_path / "small/images/label/c/0").stat().st_size == 32 * 8 + 16 + n_chunks * 16 + 4
    assert same(FeatureStore.open(tmp_path / "small").labels, contents["images/label"])
