"""A damaged set repaired: all that can be vouched for is kept, and the result is what it was."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store import ArrayLayout, StoreError
from store.writing.shard import salvage
from tests.folders import files
from tests.store.conftest import flip, shard_bytes
from tests.store.tiny import SHARD, Tiny

TINY = Tiny(90, (3, 5))
PATCH, OTHER = "patch/block3/view0", "patch/block5/view0"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY.make(tmp_path_factory.mktemp("sound") / "one")


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "one")


def _layouts(shard_rows: int | None) -> Sequence[ArrayLayout]:
    return [replace(a, shard_rows=shard_rows or 7 * SHARD) for a in TINY.layouts]


def _repair(path: Path) -> list[tuple[str, int]]:
    base, layouts, skip = salvage(path, TINY.spec, _layouts)
    assert layouts == TINY.layouts
    with TINY.begin(path, base, skip) as writer:
        asked = [(name, unit) for unit in writer.missing_units() for name in writer.arrays_to_compute(unit)]
        TINY.finish(writer)
    return asked


def _put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(content)


def _flip(name: str, at: int) -> Callable[[Path], object]:
    return lambda path: flip(path / name, at)


def _lose(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


def _swap(path: Path) -> None:
    one, other = (path / SHARD_1).read_bytes(), (path / SHARD_0).read_bytes()
    (path / SHARD_0).write_bytes(one)
    (path / SHARD_1).write_bytes(other)


OTHER_ROWS = shard_bytes(next(a for a in TINY.layouts if a.name == PATCH), 1, np.ones((32, 2, 3), "float16"))
GROUP, META, SHARD_0, SHARD_1, SHARD_2 = "zarr.json", f"{PATCH}/zarr.json", *(f"{PATCH}/c/{unit}/0/0" for unit in range(3))
OF_PATCH = [(PATCH, unit) for unit in range(3)]
DAMAGE: dict[str, tuple[list[Callable[[Path], object]], list[tuple[str, int]]]] = {
    "nothing": ([], []),
    **{f"bit {at}": ([_flip(SHARD_1, at)], [(PATCH, 1)]) for at in (0, 12 * SHARD + 3, -1)},
    "padding": ([_flip(SHARD_2, 12 * 26)], [(PATCH, 2)]),
    "a lost shard": ([_lose(SHARD_1)], [(PATCH, 1)]),
    "a longer one": ([_put(f"{OTHER}/c/2/0/0", b"x" * 10**5)], [(OTHER, 2)]),
    "exchanged shards": ([_swap], [(PATCH, 0), (PATCH, 1)]),
    # An array's metadata are made again from its shards, if they all are what the group has written down.
    "metadata lost": ([_lose(META)], []),
    "metadata of another": ([lambda path: shutil.copy(path / OTHER / GROUP, path / META)], []),
    "metadata and a bit": ([_flip(META, 40), _flip(SHARD_1, 0)], OF_PATCH),
    "metadata and a lost shard": ([_flip(META, 40), _lose(SHARD_1)], OF_PATCH),
    "metadata and a shard of other rows": ([_flip(META, 40), _put(SHARD_1, OTHER_ROWS)], OF_PATCH),
    "groups in between": ([_flip("patch/zarr.json", 3), _lose("registers/zarr.json"), _put("patch/block3/zarr.json", b"")], []),
    "constants": ([_flip("norm/weight/c/0", 0), _lose("norm/weight/zarr.json")], []),
    "many kinds": (
        [_flip(META, 11), _flip(f"{OTHER}/c/1/0/0", -1), _lose("images/valid/c/2"), _flip("cls/zarr.json", 0)],
        [(OTHER, 1), ("images/valid", 2)],
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_computed_again(path: Path, sound: Path, what: str) -> None:
    changes, expected = DAMAGE[what]
    for change in changes:
        change(path)
    assert sorted(_repair(path)) == sorted(expected)
    assert files(path) == files(sound)
    assert not (path.parent / ".staging").exists()


@pytest.mark.parametrize(
    ("change", "spec", "message"),
    [
        (lambda path: None, {"weights": "2" * 32}, r"has key .*, but these options give .* \(weights differ\)"),
        (lambda path: (path / GROUP).unlink(), {}, r"it has no zarr\.json; that is lost, or not sent yet"),
        (lambda path: shutil.rmtree(path / "patch"), {}, f"is a copy without {PATCH}; pull all of it first"),
    ],
    ids=["another key", "no description", "no patch"],
)
def test_what_cannot_be_repaired(path: Path, change: Callable[[Path], object], spec: dict[str, str], message: str) -> None:
    change(path)
    with pytest.raises(StoreError, match=message):
        salvage(path, replace(TINY.spec, **spec), _layouts)


def test_killed_during_the_repair(path: Path, sound: Path) -> None:
    flip(path / PATCH / "c/1/0/0", 0)
    flip(path / OTHER / "c/2/0/0", 0)
    base, _, skip = salvage(path, TINY.spec, _layouts)
    with TINY.begin(path, base, skip) as writer:
        TINY.write(writer, 1)
    base, _, skip = salvage(path, TINY.spec, _layouts)
    with TINY.begin(path, base, skip) as again:
        assert again.missing_units() == [0, 2]
        assert again.arrays_to_compute(0) == []
        TINY.finish(again)
    assert files(path) == files(sound)
