"""A damaged set repaired: all that can be vouched for is kept, and the result is what it was."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import ArrayLayout, FeatureStore, StoreError
from store.repair import salvage
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, edit, flip, shard_bytes
from tests.store.tiny import SHARD, Tiny

TINY = Tiny(90, (3, 5))
PATCH, OTHER = "patch/block3/view0", "patch/block5/view0"
ALL = [(a.name, unit) for a in TINY.layouts for unit in range(3)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY.make(tmp_path_factory.mktemp("sound") / "one")


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "one")


def _layouts(shard_rows: int | None) -> Sequence[ArrayLayout]:
    return [replace(a, shard_rows=shard_rows or 7 * SHARD) for a in TINY.layouts]


def _repair(path: Path) -> list[tuple[str, int]]:
    """What had to be computed again."""
    base, layouts, skip = salvage(path, TINY.spec, _layouts)
    assert layouts == TINY.layouts
    with TINY.begin(path, base, skip) as writer:
        asked = [(name, unit) for unit in writer.missing_units() for name in writer.missing_arrays(unit)]
        TINY.finish(writer)
    return asked


def _check(path: Path, sound: Path, expected: list[tuple[str, int]]) -> None:
    assert sorted(_repair(path)) == sorted(expected)
    assert files(path) == files(sound)
    assert not (path.parent / ".staging").exists()


def test_a_sound_set_asks_for_nothing(path: Path, sound: Path) -> None:
    _check(path, sound, [])


@pytest.mark.parametrize("at", [0, 12 * SHARD - 1, 12 * SHARD + 3, -30, -1])
def test_a_flipped_bit(path: Path, sound: Path, at: int) -> None:
    """In a row, in the digests, in the index."""
    flip(path / PATCH / "c/1/0/0", at, 3)
    _check(path, sound, [(PATCH, 1)])


def test_flipped_padding(path: Path, sound: Path) -> None:
    flip(path / PATCH / "c/2/0/0", 12 * 26)
    _check(path, sound, [(PATCH, 2)])


def test_lost_and_cut_shards(path: Path, sound: Path) -> None:
    (path / PATCH / "c/1/0/0").unlink()
    (path / "images/label/c/0").write_bytes(b"")
    (path / OTHER / "c/2/0/0").write_bytes(b"x" * 10**5)
    _check(path, sound, [(PATCH, 1), ("images/label", 0), (OTHER, 2)])


def test_exchanged_shards(path: Path, sound: Path) -> None:
    one, other = path / PATCH / "c/0/0/0", path / PATCH / "c/1/0/0"
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    _check(path, sound, [(PATCH, 0), (PATCH, 1)])


@pytest.mark.parametrize("how", ["flipped", "lost", "empty", "another's"])
def test_metadata_of_an_array_are_made_again(path: Path, sound: Path, how: str) -> None:
    """From its shards; nothing is computed."""
    file = path / PATCH / "zarr.json"
    if how == "flipped":
        flip(file, 40)
    elif how == "lost":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "empty" else (path / OTHER / "zarr.json").read_bytes())
    _check(path, sound, [])


@pytest.mark.parametrize("at", [0, 12 * SHARD + 3, -1])
def test_metadata_and_a_shard(path: Path, sound: Path, at: int) -> None:
    """Nothing vouches for the other shards of that array."""
    flip(path / PATCH / "zarr.json", 40)
    flip(path / PATCH / "c/1/0/0", at)
    _check(path, sound, [(PATCH, unit) for unit in range(3)])


def test_metadata_and_a_lost_shard(path: Path, sound: Path) -> None:
    flip(path / PATCH / "zarr.json", 40)
    (path / PATCH / "c/1/0/0").unlink()
    _check(path, sound, [(PATCH, unit) for unit in range(3)])


def test_metadata_and_a_shard_of_the_right_digests(path: Path, sound: Path) -> None:
    """It is sound in itself, but not what the group has written down."""
    (layout,) = (a for a in TINY.layouts if a.name == PATCH)
    (path / PATCH / "c/1/0/0").write_bytes(shard_bytes(layout, 1, np.ones((32, 2, 3), "float16")))
    flip(path / PATCH / "zarr.json", 40)
    _check(path, sound, [(PATCH, unit) for unit in range(3)])


@pytest.mark.parametrize("how", ["flipped", "lost", "no JSON", "edited"])
def test_metadata_of_the_group(path: Path, sound: Path, how: str) -> None:
    """Arrays vouch for themselves; units with images that are not valid are computed again, for the notes on them."""
    file = path / "zarr.json"
    if how == "lost":
        file.unlink()
    elif how == "edited":
        file.write_bytes(file.read_bytes().replace(b'"vit"', b'"vat"'))
    else:
        file.write_bytes(b"[" * 10**5) if how == "no JSON" else flip(file, 200)
    _check(path, sound, [(name, unit) for name, unit in ALL if unit in (0, 1)])  # rows 3, 35, 45


def test_metadata_of_the_group_and_of_an_array(path: Path, sound: Path) -> None:
    (path / "zarr.json").unlink()
    (path / OTHER / "zarr.json").write_bytes(b"{")
    flip(path / PATCH / "c/2/0/0", 0)
    _check(path, sound, [*((name, unit) for name, unit in ALL if unit in (0, 1)), (PATCH, 2), (OTHER, 2)])


def test_an_array_that_is_described_otherwise(path: Path, sound: Path) -> None:
    """Nothing vouches for its description when the group's is lost."""
    (path / "zarr.json").unlink()
    edit(path, lambda meta: meta.update(dimension_names=["image", "patch", "colour"]), PATCH)
    _check(path, sound, [*((name, unit) for name, unit in ALL if unit in (0, 1)), (PATCH, 2)])


@pytest.mark.parametrize("shard", [0, 2])
def test_which_images_are_valid_is_lost(path: Path, sound: Path, shard: int) -> None:
    """Without the group's notes and without that array's rows, any image may have been invalid."""
    (path / "zarr.json").unlink()
    flip(path / "images/valid" / f"c/{shard}", 0)
    _check(path, sound, [(name, unit) for name, unit in ALL if unit in (0, 1, shard)])


def test_no_metadata_at_all(path: Path, sound: Path) -> None:
    """Nothing vouches for anything: all is computed again, with the rows of a shard that are usual."""
    for file in path.rglob("zarr.json"):
        file.unlink()
    base, layouts, _ = salvage(path, TINY.spec, _layouts)
    assert [a.shard_rows for a in layouts] == [7 * SHARD] * len(layouts)
    assert base.arrays == {}


@pytest.mark.parametrize("rows", [16, 64])
def test_rows_of_a_shard_are_those_of_most(path: Path, rows: int) -> None:
    def change(meta: dict[str, Any]) -> None:
        meta["chunk_grid"]["configuration"]["chunk_shape"][0] = rows
        meta["codecs"][0]["configuration"]["chunk_shape"][0] = 16

    edit(path, change, "images/label")
    _, layouts, skip = salvage(path, TINY.spec, _layouts)
    assert layouts == TINY.layouts
    assert skip == []


def test_a_set_with_another_key(path: Path) -> None:
    with pytest.raises(StoreError, match=r"has key .*, but these options give .* \(weights differ\); repair it with"):
        salvage(path, replace(TINY.spec, weights="2" * 32), _layouts)


@pytest.mark.parametrize("lost", [False, True])
def test_a_copy_without_a_kind(path: Path, lost: bool) -> None:
    shutil.rmtree(path / "patch")
    if lost:
        (path / "zarr.json").unlink()
    with pytest.raises(StoreError, match=f"is a copy without {PATCH}; pull all of it first"):
        salvage(path, TINY.spec, _layouts)


def test_damaged_groups_in_between(path: Path, sound: Path) -> None:
    """Of kinds, and of what stands between them and the arrays."""
    flip(path / "patch/zarr.json", 3)
    (path / "registers/zarr.json").unlink()
    (path / "patch/block3/zarr.json").write_bytes(b"")
    _check(path, sound, [])


def test_damaged_constants(path: Path, sound: Path) -> None:
    flip(path / "norm/weight/c/0", 0)
    (path / "norm/weight/zarr.json").unlink()
    _check(path, sound, [])


def test_killed_during_the_repair(path: Path, sound: Path) -> None:
    flip(path / PATCH / "c/1/0/0", 0)
    flip(path / OTHER / "c/2/0/0", 0)
    base, _, skip = salvage(path, TINY.spec, _layouts)
    with TINY.begin(path, base, skip) as writer:
        TINY.write(writer, 1)
    base, _, skip = salvage(path, TINY.spec, _layouts)
    with TINY.begin(path, base, skip) as again:
        assert again.missing_units() == [2]
        TINY.finish(again)
    assert files(path) == files(sound)


def test_damage_of_many_kinds(path: Path, sound: Path) -> None:
    flip(path / PATCH / "zarr.json", 11)
    flip(path / OTHER / "c/1/0/0", -1)
    (path / "images/valid/c/2").unlink()
    flip(path / "cls/zarr.json", 0)
    flip(path / "norm/zarr.json", 0)
    _check(path, sound, [(OTHER, 1), ("images/valid", 2)])
    assert FeatureStore.open(path).attributes["encoder"] == ATTRIBUTES["encoder"]
