"""What is special to a folder: staging beside the place of a set, links to files of another set, processes that are stopped."""

import os
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
import zarr

from store import FeatureStore, FeatureWriter, StoreError, verify
from store.format.unfinished import CLAIMS, UNNAMED
from store.places.disk import ABANDONED_S
from store.writing import claims
from tests.folders import files
from tests.forked import CONTEXT, start
from tests.store.conftest import ATTRIBUTES, CONSTANTS, SPEC, flip, layouts, unit_of
from tests.store.tiny import Tiny

Contents = dict[str, np.ndarray]
TINY = Tiny(n=100, lean=True)  # 32 + 32 + 32 + 4 rows
MORE = Tiny(n=100, blocks=(3, 5), lean=True)
PATCH = "patch/block3/view0"


def _begin(path: Path) -> FeatureWriter:
    return FeatureWriter(path, SPEC, layouts(), CONSTANTS)


class TestStaging:
    def test_another_key_is_staged_beside(self, tmp_path: Path, contents: Contents) -> None:
        _begin(tmp_path / "new").write_unit(0, unit_of(contents, layouts(), 0))
        other = FeatureWriter(tmp_path / "new", replace(SPEC, weights="2" * 32), layouts(), CONSTANTS)
        assert other.missing_units() == [0, 1, 2]

    def test_a_file_at_the_path(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(StoreError, match="is a file, expected a folder"):
            _begin(tmp_path / "file")
        assert not (tmp_path / ".staging").exists()

    def test_old_files_without_a_name_are_removed(self, tmp_path: Path) -> None:
        with TINY.begin(tmp_path / "f") as writer:
            old, new = (writer.staging / UNNAMED / name for name in ("old", "new"))
            for file in (old, new):
                file.write_text("half")
            os.utime(old, (0, time.time() - ABANDONED_S - 1))
        with TINY.begin(tmp_path / "f") as writer:
            assert (old.exists(), new.exists()) == (False, True)
            TINY.finish(writer)
        assert files(tmp_path / "f") == TINY.expected(tmp_path / "whole")

    def test_a_file_that_was_changed_is_not_published(self, tmp_path: Path) -> None:
        """Of the right size: its last bytes are compared with the record."""
        with TINY.begin(tmp_path / "f") as writer:
            for unit in writer.missing_units():
                TINY.write(writer, unit)
            flip(writer.staging / f"{PATCH}/c/2/0/0", -30)
            with pytest.raises(StoreError, match=r"c/2/0/0 \(unit 2\) is not what was written there"):
                writer.finish(ATTRIBUTES)
        with TINY.begin(tmp_path / "f") as writer:
            assert writer.missing_units() == [2]
            TINY.finish(writer)
        assert files(tmp_path / "f") == TINY.expected(tmp_path / "whole")


class TestRows:
    def test_nonfinite_values_are_counted(self, written: Path, contents: Contents) -> None:
        for a in layouts():
            shards = zarr.open_array(written / a.name, mode="r").attrs["beyondcls"]["shards"]  # type: ignore[index,call-overload]
            counted = [int((~np.isfinite(contents[a.name][slice(*s["rows"])])).sum()) for s in shards]  # type: ignore[index,union-attr,misc,call-overload]
            assert [s["nonfinite"] for s in shards] == counted  # type: ignore[index,union-attr,call-overload]

    def test_wrong_rows_are_our_own_error(self, tmp_path: Path, contents: Contents) -> None:
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


class TestLinks:
    @pytest.mark.parametrize("can_link", [True, False])
    def test_shards_of_the_base(self, can_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """By two writers; copied where files cannot be linked."""

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        base = FeatureStore.open(TINY.make(tmp_path / "f"))
        inode = (tmp_path / "f" / PATCH / "c/0/0/0").stat().st_ino
        if not can_link:
            monkeypatch.setattr(os, "link", refuse)
        with MORE.begin(tmp_path / "f", base) as one, MORE.begin(tmp_path / "f", base) as other:
            for unit, writer in enumerate((one, other, one, other)):
                assert writer.claim(unit)
                assert writer.arrays_to_compute(unit) == ["patch/block5/view0"]
                MORE.write(writer, unit, poison=True)
            MORE.write(one, 3, poison=True)  # again, as where a claim has ended
            one.finish(ATTRIBUTES)
            other.finish(ATTRIBUTES)
        assert ((tmp_path / "f" / PATCH / "c/0/0/0").stat().st_ino == inode) is can_link
        monkeypatch.undo()
        assert files(tmp_path / "f") == MORE.expected(tmp_path / "whole")

    def test_a_file_in_the_place_of_one_that_is_damaged(self, tmp_path: Path) -> None:
        """It takes that place; the set that it is linked from keeps its own."""
        base = FeatureStore.open(TINY.make(tmp_path / "f"))
        before = files(tmp_path / "f")
        with MORE.begin(tmp_path / "f", base) as writer:
            file = writer.staging / PATCH / "c/0/0/0"
            file.parent.mkdir(parents=True)
            file.write_bytes(bytes(len(before[f"{PATCH}/c/0/0/0"])))
            MORE.write(writer, 0)
            assert file.read_bytes() == before[f"{PATCH}/c/0/0/0"]
            assert files(tmp_path / "f") == before
            MORE.finish(writer)
        assert files(tmp_path / "f") == MORE.expected(tmp_path / "whole")


def share(path: Path, change: float, claimed: Event, goes_on: Event, outcome: Connection) -> None:
    """Claim a unit and wait; then write it, and finish the set."""
    try:
        with TINY.begin(path) as writer:
            assert writer.claim(0)
            claimed.set()
            goes_on.wait()
            rows = {a.name: TINY.values(a.name, *a.rows(0)).copy() for a in TINY.layouts}
            rows[PATCH] += np.float16(change)
            writer.write_unit(0, rows)
            writer.finish(ATTRIBUTES)
            outcome.send("published")
    except StoreError as error:
        outcome.send(str(error))


class TestProcesses:
    def test_one_that_was_killed(self, tmp_path: Path) -> None:
        """Its claims are free at once; those of one that is alive are not."""
        events = CONTEXT.Event(), CONTEXT.Event()
        other = start(share, tmp_path / "f", 0, *events, CONTEXT.Pipe()[1])
        assert events[0].wait(60)
        with TINY.begin(tmp_path / "f") as writer:
            assert not writer.claim(0)
            assert claims.holder(writer.place) == f"process {other.pid} on {os.uname().nodename!r}"
            other.kill()
            other.join()
            assert claims.holder(writer.place) is None
            assert len(list((writer.staging / CLAIMS).iterdir())) == 1
            began = time.monotonic()
            assert writer.claim(0)
            assert time.monotonic() - began < claims.SECONDS / 4
            TINY.finish(writer)
        assert files(tmp_path / "f") == TINY.expected(tmp_path / "whole")
        assert not (tmp_path / ".staging").exists()

    @pytest.mark.parametrize("change", [0, 1])
    def test_one_that_is_stopped_for_longer_than_its_claim_lasts(
        self, change: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another takes its unit over and publishes the set; then it goes on, and what it has computed is of no use."""
        monkeypatch.setattr(claims, "SECONDS", 0.2)
        (claimed, goes_on), (receiver, sender) = (CONTEXT.Event(), CONTEXT.Event()), CONTEXT.Pipe(duplex=False)
        stopped = start(share, tmp_path / "f", change, claimed, goes_on, sender)
        sender.close()
        assert claimed.wait(60)
        assert stopped.pid is not None
        with TINY.begin(tmp_path / "f") as writer:
            assert not writer.claim(0), "it is alive"
            os.kill(stopped.pid, signal.SIGSTOP)
            for unit in (1, 2, 3):
                TINY.write(writer, unit)
            assert writer.wait_for_others() == [0]
            assert writer.claim(0)
            TINY.finish(writer)
        whole = TINY.expected(tmp_path / "whole")
        assert files(tmp_path / "f") == whole
        os.kill(stopped.pid, signal.SIGCONT)
        goes_on.set()
        assert receiver.recv() == "published"
        stopped.join()
        assert files(tmp_path / "f") == whole
        assert all(problem is None for _, _, problem in verify(tmp_path / "f"))
        assert not (tmp_path / ".staging").exists()
