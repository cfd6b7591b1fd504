"""Two that compute one unit, whose locks failed them: equal bytes harm nobody, different ones are refused."""

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from store import FeatureWriter, StoreError, verify
from store.places import disk
from store.writing import shard_writer
from store.writing import writer as writing
from tests.folders import files
from tests.forked import CONTEXT, start
from tests.store.conftest import ATTRIBUTES
from tests.store.leased import without_locks
from tests.store.tiny import Tiny

TINY = Tiny(n=100, lean=True)  # 32 + 32 + 32 + 4 rows
PATCH = "patch/block3/view0"


class NoLock:
    """A lock that everybody holds."""

    def __init__(self, path: Path, resource: str, shared: bool = False, wait: bool = False):
        pass

    def check(self) -> None:
        pass

    def is_lost(self) -> bool:
        return False

    release = check


def begin(path: Path) -> FeatureWriter:
    return FeatureWriter(path, TINY.spec, TINY.layouts, TINY.constants, shared=True)


def write(writer: FeatureWriter, unit: int, change: float = 0) -> None:
    start, stop = TINY.layouts[0].rows(unit)
    rows = {layout.name: TINY.values(layout.name, start, stop).copy() for layout in TINY.layouts}
    rows[PATCH][3] += change
    writer.write_unit(unit, rows, [])


def finish(writer: FeatureWriter) -> bool:
    for unit in writer.missing_units():
        if writer.claim(unit):
            write(writer, unit)
    return writer.finish(ATTRIBUTES)


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    with begin(tmp_path / "whole") as writer:
        finish(writer)
    return files(tmp_path / "whole")


@pytest.fixture
def _no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "Lock", NoLock)


class Moments:
    """When a second claimant comes in between: it writes, and perhaps publishes."""

    def __init__(self, first: FeatureWriter, patch: pytest.MonkeyPatch):
        self.first, self.other, self.patch = first, begin(first.path), patch

    def while_the_first_computes(self) -> None:
        write(self.other, 0)

    def while_the_first_computes_which_learns_of_it(self) -> None:
        write(self.other, 0)
        assert self.first.claim(1)

    def while_the_first_computes_and_all_is_published(self) -> None:
        assert finish(self.other)

    def _before(self, owner: Any, name: str, act: Callable[[], object]) -> None:
        real, todo = getattr(owner, name), [act]

        def call(*given: Any) -> Any:
            if todo:
                todo.pop()()
            return real(*given)

        self.patch.setattr(owner, name, call)

    def before_the_first_names_its_files(self) -> None:
        self._before(writing, "place_file", lambda: write(self.other, 0))

    def before_the_first_names_its_files_and_all_is_published(self) -> None:
        self._before(writing, "place_file", lambda: finish(self.other))

    def before_the_first_writes_its_files_and_all_is_published(self) -> None:
        self._before(shard_writer, "write_shard", lambda: finish(self.other))


MOMENTS = [name for name in vars(Moments) if not name.startswith("_")]


@pytest.mark.usefixtures("_no_locks")
@pytest.mark.parametrize("moment", MOMENTS)
class TestWithoutAnyLock:
    def test_equal_bytes(self, moment: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        moments = Moments(first := begin(tmp_path / "f"), monkeypatch)
        assert first.claim(0)
        getattr(moments, moment)()
        write(first, 0)
        assert finish(first)
        assert files(tmp_path / "f") == whole
        assert not (tmp_path / ".staging").exists()

    def test_different_bytes(
        self, moment: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moments = Moments(first := begin(tmp_path / "f"), monkeypatch)
        assert first.claim(0)
        getattr(moments, moment)()
        with pytest.raises(StoreError) as caught:
            write(first, 0, change=1)
        message = str(caught.value)
        assert f"unit 0 of {tmp_path / 'f'}: " in message
        assert f"have written different bytes of {PATCH} (XXH3 " in message
        assert first._name in message
        assert (moments.other._name if "published" not in moment else "whoever published it") in message
        assert "published" in moment or finish(moments.other)
        assert files(tmp_path / "f") == whole, "those of the one that was first"


@pytest.mark.usefixtures("_no_locks")
def test_journals_that_differ_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was named and journalled before the other looked."""
    one, other = begin(tmp_path / "f"), begin(tmp_path / "f")
    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "_compare_with_others", lambda *given: False)
        patch.setattr(writing, "is_whole", lambda *given: True)
        write(one, 0)
        write(other, 0, change=1)
    for writer in (one, other):
        with pytest.raises(StoreError, match=f"{one._name} and {other._name} have written different bytes of {PATCH}"):
            finish(writer)
    with pytest.raises(StoreError, match="have written different bytes"):
        begin(tmp_path / "f")
    with pytest.raises(StoreError, match="have written different bytes"):
        TINY.begin(tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_unit_without_a_line_in_a_journal_may_be_other_bytes(whole: dict[str, bytes], tmp_path: Path) -> None:
    """Of one that was killed before its line: its files are replaced, and no kill costs anybody their work."""
    with begin(tmp_path / "f") as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "add_record", lambda *given: None)
        write(writer, 0, change=1)
    with begin(tmp_path / "f") as writer:
        assert finish(writer)
    assert files(tmp_path / "f") == whole


def test_a_damaged_file_may_be_other_bytes(tmp_path: Path) -> None:
    """For a writer on its own: what a journal says of a file that is not whole is forgotten."""
    with TINY.begin(tmp_path / "f") as writer:
        write(writer, 0, change=1)
        (damaged,) = writer.staging.glob("patch/block3/view0/c/0/0/0")
        os.truncate(damaged, 8)
    with TINY.begin(tmp_path / "f") as writer:
        assert writer.missing_arrays(0) == [PATCH]
        write(writer, 0)
    with TINY.begin(tmp_path / "f") as writer:
        assert writer.missing_units() == [1, 2, 3]


def test_a_file_that_vanished_is_not_published(whole: dict[str, bytes], tmp_path: Path) -> None:
    with begin(tmp_path / "f") as writer:
        for unit in writer.missing_units():
            write(writer, unit)
        (lost,) = writer.staging.glob("images/label/c/2")
        lost.unlink()
        with pytest.raises(StoreError, match=r"unit 2 of .*label/c/2 is not what the journals say; give the command again"):
            writer.finish(ATTRIBUTES)
    with begin(tmp_path / "f") as writer:
        assert writer.missing_units() == [2]
        assert finish(writer)
    assert files(tmp_path / "f") == whole


def test_a_staging_folder_that_was_removed(tmp_path: Path) -> None:
    with begin(tmp_path / "f") as writer:
        assert writer.claim(0)
        for file in sorted(writer.staging.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        writer.staging.rmdir()
        with pytest.raises(StoreError, match="was removed while it was being written; give the command again"):
            write(writer, 0)


def test_where_files_cannot_be_linked(whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(disk.os, "link", refuse)
    with begin(tmp_path / "f") as writer:
        assert finish(writer)
    assert files(tmp_path / "f") == whole


def share(path: Path, change: float, claimed: Event, goes_on: Event, outcome: Connection) -> None:
    with pytest.MonkeyPatch.context() as patch:
        without_locks(patch)
        try:
            with begin(path) as writer:
                assert writer.claim(0)
                claimed.set()
                goes_on.wait()
                write(writer, 0, change)
                outcome.send(finish(writer))
        except StoreError as error:
            outcome.send(str(error))


@pytest.mark.parametrize("change", [0, 1])
def test_one_that_is_stopped_for_longer_than_its_lease(
    change: float, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another takes its unit over and publishes; then it goes on."""
    without_locks(monkeypatch)
    claimed, goes_on = CONTEXT.Event(), CONTEXT.Event()
    receiver, sender = CONTEXT.Pipe(duplex=False)
    stopped = start(share, tmp_path / "f", change, claimed, goes_on, sender)
    sender.close()
    assert claimed.wait(60)
    assert stopped.pid is not None
    with begin(tmp_path / "f") as writer:
        assert not writer.claim(0), "it is alive"
        os.kill(stopped.pid, signal.SIGSTOP)
        assert finish(writer)
    assert files(tmp_path / "f") == whole
    os.kill(stopped.pid, signal.SIGCONT)
    goes_on.set()
    outcome = receiver.recv()
    stopped.join()
    assert outcome is True if not change else "have written different bytes" in outcome, outcome
    assert files(tmp_path / "f") == whole
    assert all(problem is None for _, _, problem in verify(tmp_path / "f"))
    assert not (tmp_path / ".staging").exists()
