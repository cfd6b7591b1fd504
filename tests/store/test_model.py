"""Any sequence of writing, killing, resuming, extending and damaging leaves what a plain dictionary of rows says."""

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

from store import FeatureStore, FeatureWriter, verify
from store.format.unfinished import UNNAMED, WRITING, record_name
from store.places.disk import PARTIAL
from store.writing.shard import salvage
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, flip
from tests.store.tiny import MAX, Tiny, notes


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

    def _base(self):
        return FeatureStore.open(self.path) if self.published is not None else None

    @precondition(lambda self: self.writer is None and self.published != self.target)
    @rule()
    def begin(self):
        self.writer = self.target.begin(self.path, self._base())
        assert set(self.writer.missing_units()) == set(range(self.writer.n_units)) - self.recorded

    @precondition(lambda self: self.writer is not None and self.writer.missing_units())
    @rule(choice=st.integers(0, MAX), poison=st.booleans())
    def append(self, choice, poison):
        assert self.writer is not None
        missing = self.writer.missing_units()
        unit = missing[choice % len(missing)]
        self.target.write(self.writer, unit, poison)
        self.recorded.add(unit)

    @precondition(lambda self: self.writer is not None)
    @rule(litter=st.booleans(), choice=st.integers(0, MAX))
    def kill(self, litter, choice):
        """Half of a file may be left, or a shard without the record of its unit."""
        assert self.writer is not None
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
        """A staged shard."""
        layouts = self.target.layouts
        unit, layout = sorted(self.recorded)[choice % len(self.recorded)], layouts[choice % len(layouts)]
        staging = self.path.parent / ".staging" / f"one-{self.target.spec.key}"
        (staging / layout.file(unit)).unlink()
        self.recorded.remove(unit)

    @precondition(lambda self: self.writer is not None and not self.writer.missing_units())
    @rule()
    def finish(self):
        assert self.writer is not None
        self.writer.finish(ATTRIBUTES)
        self.writer, self.published, self.recorded = None, self.target, set()

    @precondition(lambda self: self.writer is None and self.published == self.target)
    @rule(more=st.integers(0, 40), block=st.integers(0, 6), views=st.integers(1, 2), cls=st.booleans())
    def extend(self, more, block, views, cls):
        assert self.published is not None
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
        hit = {}
        for which, at in choices:
            layout, shard = shards[which % len(shards)]
            if (layout.name, shard) not in hit:
                file = self.path / layout.file(shard)
                file.write_bytes(content := file.read_bytes())  # not a link any more
                flip(file, at * 7 % len(content))
                hit[layout.name, shard] = file
        damaged = {(name, shard) for name, shard, problem in verify(self.path) if problem}
        assert damaged == set(hit)
        base, _, skip = salvage(self.path, tiny.spec, lambda _: tiny.layouts)
        assert set(skip) == damaged
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
