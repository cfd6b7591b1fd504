"""An older set extended: what both have is linked, what is new is asked for, and the result is as if written at once."""

import numpy as np
import pytest

from store import FeatureStore, StoreError, verify
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, flip
from tests.store.tiny import SHARD, Tiny, first_row

OLD = Tiny(70, (3,))
CASES = {
    "block": Tiny(70, (3, 5)),
    "view": Tiny(70, (3,), views=2),
    "kind": Tiny(70, (3,), cls=True),
    "rows": Tiny(90, (3,)),
    "rows of several": Tiny(200, (3,)),
    "a row": Tiny(71, (3,)),
    "all": Tiny(101, (0, 3, 7), views=2, cls=True),
}


@pytest.mark.parametrize("new", CASES.values(), ids=CASES)
def test_as_if_written_at_once(tmp_path, new):
    """Byte by byte; rows that are already there are never taken from what is computed again for the sake of others."""
    path = OLD.make(tmp_path / "one")
    base = FeatureStore.open(path)
    shards = [(path / a.file(shard), shard) for a in OLD.layouts for shard in range(a.n_shards)]
    before = {file: file.stat() for file, _ in shards}
    with new.begin(path, base) as writer:
        for unit in writer.missing_units():
            new.write(writer, unit, poison=True)
            assert np.array_equal(base.array("images/label").all(), np.arange(70))  # the old set is there until the end
            assert FeatureStore.open(path).spec == OLD.spec
        writer.finish(ATTRIBUTES)
    assert files(path) == new.expected(tmp_path / "expected")
    assert not (tmp_path / ".staging").exists()
    store = FeatureStore.open(path)
    assert store.spec == new.spec
    assert all(problem is None for _, _, problem in verify(path))
    assert [note["row"] for note in store.attributes["invalid"]] == np.flatnonzero(~store.valid).tolist()
    for file, shard in shards:
        linked = (file.stat().st_ino, file.stat().st_mtime_ns) == (before[file].st_ino, before[file].st_mtime_ns)
        assert linked == (new.n == 70 or (shard + 1) * SHARD <= 70), file


def test_what_is_asked_for(tmp_path):
    path = OLD.make(tmp_path / "one")
    with Tiny(130, (3, 5)).begin(path, FeatureStore.open(path)) as writer:
        assert writer.missing_units() == [0, 1, 2, 3, 4]
        assert writer.arrays_to_compute(0) == ["patch/block5/view0"]
        assert writer.arrays_to_compute(2) == list(writer.layouts)
        assert [first_row(writer, unit) for unit in range(5)] == [0, 32, 64, 96, 128]  # the new block needs every row
    with Tiny(130, (3,)).begin(path, FeatureStore.open(path)) as writer:
        assert [writer.arrays_to_compute(unit) for unit in range(5)] == [[], [], *[list(writer.layouts)] * 3]
        assert [first_row(writer, unit) for unit in (2, 3, 4)] == [70, 96, 128]


def test_fewer_rows(tmp_path):
    """The shard that is cut is made from the base's rows, and then is completed; row 35 is not valid."""
    path, fewer, more = OLD.make(tmp_path / "one"), Tiny(40, (3,)), Tiny(50, (3,))
    with fewer.begin(path, FeatureStore.open(path)) as writer:
        assert writer.arrays_to_compute(0) == writer.arrays_to_compute(1) == []
        fewer.finish(writer)
    assert files(path) == fewer.expected(tmp_path / "fewer")
    with more.begin(path, FeatureStore.open(path)) as writer:
        assert first_row(writer, 1) == 40
        more.finish(writer)
    assert files(path) == more.expected(tmp_path / "more")


@pytest.mark.parametrize(("field", "value"), [("codec", "float32"), ("dtype", "uint16"), ("dimensions", ())])
def test_another_way_to_store_carries_nothing_over(tmp_path, field, value):
    path, new = OLD.make(tmp_path / "one"), Tiny(70, (3, 5))
    base = FeatureStore.open(path)
    object.__setattr__(base.arrays["patch/block3/view0"].layout, field, value)
    with new.begin(path, base) as writer:
        assert writer.arrays_to_compute(0) == ["patch/block3/view0", "patch/block5/view0"]


@pytest.mark.parametrize(
    ("old", "new", "at", "damaged"),
    [(OLD, CASES["block"], -30, "its tail"), (Tiny(40, (3,)), Tiny(50, (3,)), 0, "rows 32 to 39")],
)
def test_damage_is_not_carried_over(tmp_path, old, new, at, damaged):
    path = old.make(tmp_path / "one")
    flip(path / "patch/block3/view0/c/1/0/0", at)
    with new.begin(path, FeatureStore.open(path)) as writer:
        if old is OLD:
            new.write(writer, 0)
        with pytest.raises(StoreError, match=rf"patch/block3/view0/c/1/0/0 is damaged \({damaged}\)"):
            new.write(writer, 1)
