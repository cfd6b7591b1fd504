"""Any sequence of writing, killing, resuming, extending and damaging leaves what a plain dictionary of rows says.

What is extended is linked, what is new is asked for, and the result is as if it was written at once.
"""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from store import FeatureStore, FeatureWriter, StoreError, verify
from store.format.unfinished import UNNAMED, WRITING, record_name
from store.places.disk import PARTIAL
from store.writing.shard import salvage
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, flip
from tests.store.tiny import MAX, SHARD, Tiny, first_row, notes


class Life(RuleBasedStateMachine):
    """Of one feature set. `published` is the finished set, `target` the one that is written."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("store.format.layout.KINDS", ("images", "patch"))  # fewer files
        self.root = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))  # as tmp_path
        self.path = self.root / "features" / "one"
        self.published: Tiny | None = None
        self.target = Tiny(40, (3,))
        self.writer: FeatureWriter | None = None
        self.recorded: set[int] = set()  # units of the target

    def teardown(self):
        if self.writer is not None:
            self.writer.close()
        self.patch.undo()
        shutil.rmtree(self.root)

    @precondition(lambda self: self.writer is None and self.published != self.target)
    @rule()
    def begin(self):
        self.writer = self.target.begin(self.path, FeatureStore.open(self.path) if self.published is not None else None)
        assert set(self.writer.missing_units()) == set(range(self.writer.n_units)) - self.recorded

    @precondition(lambda self: self.writer is not None and self.writer.missing_units())
    @rule(choice=st.integers(0, MAX), poison=st.booleans())
    def append(self, choice, poison):
        missing = self.writer.missing_units()
        unit = missing[choice % len(missing)]
        self.target.write(self.writer, unit, poison)
        self.recorded.add(unit)

    @precondition(lambda self: self.writer is not None)
    @rule(litter=st.booleans(), choice=st.integers(0, MAX))
    def kill(self, litter, choice):
        """Half of a file may be left, or a shard without the record of its unit."""
        staging = self.writer.staging
        self.writer.close()
        self.writer = None
        if litter:
            (staging / UNNAMED / f"x{PARTIAL}").write_bytes(b"half")
            if self.recorded:
                unit = sorted(self.recorded)[choice % len(self.recorded)]
                (staging / record_name(unit)).unlink()
                self.recorded.remove(unit)

    @precondition(lambda self: self.writer is None and self.recorded)
    @rule(choice=st.integers(0, MAX))
    def lose(self, choice):
        layouts = self.target.layouts
        unit, layout = sorted(self.recorded)[choice % len(self.recorded)], layouts[choice % len(layouts)]
        staging = self.path.parent / ".staging" / f"one-{self.target.spec.key}"
        (staging / layout.file(unit)).unlink()
        self.recorded.remove(unit)

    @precondition(lambda self: self.writer is not None and not self.writer.missing_units())
    @rule()
    def finish(self):
        self.writer.finish(ATTRIBUTES)
        self.writer, self.published, self.recorded = None, self.target, set()

    @precondition(lambda self: self.writer is None and self.published == self.target)
    @rule(more=st.integers(0, 40), block=st.integers(0, 6), views=st.integers(1, 2), cls=st.booleans())
    def extend(self, more, block, views, cls):
        self.target = replace(
            self.published,
            n=min(self.published.n + more, 130),
            blocks=tuple(sorted({*self.published.blocks, block}))[:3],
            views=max(views, self.published.views),
            cls=cls or self.published.cls,
        )

    @precondition(lambda self: self.writer is None and self.published is not None and self.published == self.target)
    @rule(choices=st.lists(st.tuples(st.integers(0, MAX), st.integers(0, MAX)), min_size=1, max_size=3))
    def damage_and_repair(self, choices):
        tiny = self.target
        shards = [(a, shard) for a in tiny.layouts for shard in range(a.n_shards)]
        hit = set()
        for which, at in choices:
            layout, shard = shards[which % len(shards)]
            if (layout.name, shard) not in hit:
                file = self.path / layout.file(shard)
                file.write_bytes(content := file.read_bytes())  # not a link any more
                flip(file, at * 7 % len(content))
                hit.add((layout.name, shard))
        assert {(name, shard) for name, shard, problem in verify(self.path) if problem} == hit
        base, _, skip = salvage(self.path, tiny.spec, lambda _: tiny.layouts)
        assert set(skip) == hit
        with tiny.begin(self.path, base, skip) as writer:
            tiny.finish(writer)

    @invariant()
    def what_is_published_is_whole(self):
        if self.published is None:
            assert not self.path.exists()
            return
        store = FeatureStore.open(self.path)
        assert store.spec == self.published.spec
        for layout in self.published.layouts:
            assert np.array_equal(
                store.array(layout.name).stored(np.arange(self.published.n)), self.published.values(layout.name)
            )
        assert store.attributes["invalid"] == notes(0, self.published.n)
        assert not [name for name in files(self.path) if name.endswith(PARTIAL) or name.startswith(WRITING)]


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
class TestLife(Life.TestCase):
    settings = settings(max_examples=int(os.environ.get("BEYONDCLS_FUZZ", "25")), stateful_step_count=20, deadline=None)


# -- extension ---------------------------------------------------------------------------------------------------------


OLD = Tiny(70, (3,))
BLOCK, ROW, ALL = Tiny(70, (3, 5)), Tiny(71, (3,)), Tiny(101, (0, 3, 7), views=2, cls=True)


@pytest.mark.parametrize("new", [BLOCK, ROW, ALL], ids=["block", "a row", "all"])
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
    path = OLD.make(tmp_path / "one")
    base = FeatureStore.open(path)
    object.__setattr__(base.arrays["patch/block3/view0"].layout, field, value)
    with BLOCK.begin(path, base) as writer:
        assert writer.arrays_to_compute(0) == ["patch/block3/view0", "patch/block5/view0"]


@pytest.mark.parametrize(
    ("old", "new", "at", "damaged"),
    [(OLD, BLOCK, -30, "its tail"), (Tiny(40, (3,)), Tiny(50, (3,)), 0, "rows 32 to 39")],
)
def test_damage_is_not_carried_over(tmp_path, old, new, at, damaged):
    path = old.make(tmp_path / "one")
    flip(path / "patch/block3/view0/c/1/0/0", at)
    with new.begin(path, FeatureStore.open(path)) as writer:
        if old is OLD:
            new.write(writer, 0)
        with pytest.raises(StoreError, match=rf"patch/block3/view0/c/1/0/0 is damaged \({damaged}\)"):
            new.write(writer, 1)
