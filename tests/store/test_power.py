"""A kill or a power cut at any moment: units with a record are whole, and the next writer makes the same bytes."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store import FeatureStore
from store.errors import StoreError
from store.format.unfinished import RECORDS, WRITING, read_record
from store.places import LocalFolder
from store.places.disk import exchange
from store.writing import claims, publishing
from store.writing.publishing import discard_staging
from store.writing.shard import read_shard
from tests.folders import files
from tests.store.tiny import Tiny

State = dict[str, bytes | None]  # path -> content; None is a folder
CHANGING = ("write", "replace", "rename", "link", "mkdir", "unlink", "rmdir", "ftruncate", "fsync")


class Disk:
    """Records what is on the disk, and what of it would be there after a power cut, after each call that changes either.

    A power cut comes in three kinds. "late": names are those of the last fsync of their folder, contents those of the last
    fsync of the file. "early": names are already there, bytes that were not synced are zeros. "removed": as late, but what
    was removed is gone.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch):
        self.root, self.progress = root, 0
        self.states: dict[str, tuple[str, int, State]] = {}
        self._paths: dict[int, str] = {}
        self._contents: dict[int, bytes] = {}  # inode -> what is safe
        self._names: dict[int, dict[str, int]] = {}  # inode of a folder -> its names that are safe
        self._folders: set[int] = set()
        self._removed: set[tuple[int, str]] = set()
        self._kept: list[int] = []  # descriptors: an inode's number must not be given to another file
        self._busy = False
        for folder, _, names in os.walk(root):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                descriptor = os.open(path, os.O_RDONLY)
                self._sync(descriptor, path)
                os.close(descriptor)
        real_open = os.open

        def opened(path: Any, flags: int, *mode: Any, **options: Any) -> int:
            descriptor = real_open(path, flags, *mode, **options)
            self._paths[descriptor] = os.fspath(path)
            if flags & os.O_CREAT:
                self._record()
            return descriptor

        patch.setattr(os, "open", opened)
        for name in CHANGING:
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        patch.setattr("store.places.disk.exchange", self._wrapped("exchange", exchange))
        self._record()

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self._busy:
                return real(*arguments, **options)
            if name in ("unlink", "rmdir"):
                folder = options.get("dir_fd")
                parent = os.fstat(folder) if folder is not None else os.stat(os.path.dirname(arguments[0]))
                self._removed.add((parent.st_ino, os.path.basename(arguments[0])))
            if name == "write" and len(arguments[1]) > 1:  # a kill in its middle
                half = real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                self._record()
                rest = real(arguments[0], arguments[1][half:])
                self._record()
                return half + rest
            if name == "fsync":
                self._sync(arguments[0], self._paths[arguments[0]])
                out = None
            else:
                out = real(*arguments, **options)
            self._record()
            return out

        return call

    def _sync(self, descriptor: int, path: str) -> None:
        self._kept.append(os.dup(descriptor))
        inode = os.fstat(descriptor).st_ino
        if os.path.isdir(path):
            self._folders.add(inode)
            self._names[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
            self._folders |= {entry.inode() for entry in os.scandir(path) if entry.is_dir()}
            self._removed = {(folder, name) for folder, name in self._removed if folder != inode}
        else:
            self._contents[inode] = Path(path).read_bytes()

    def _record(self) -> None:
        if self._busy:
            return
        self._busy = True
        current: State = {}
        entries: dict[str, os.stat_result] = {}
        early: State = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            entries[name] = path.stat()
            current[name] = content = None if path.is_dir() else path.read_bytes()
            safe = self._contents.get(entries[name].st_ino, b"")
            early[name] = None if content is None else safe + bytes(max(0, len(content) - len(safe)))
        root = self.root.stat().st_ino
        folders = {entry.st_ino for name, entry in entries.items() if current[name] is None} | self._folders
        for kind, state in (
            ("kill", current),
            ("early", early),
            ("late", self._after(root, "", folders, removed=False)),
            ("removed", self._after(root, "", folders, removed=True)),
        ):
            self.states.setdefault(repr(sorted(state.items())), (kind, self.progress, state))
        self._busy = False

    def _after(self, folder: int, prefix: str, folders: set[int], removed: bool) -> State:
        state: State = {}
        for name, inode in self._names.get(folder, {}).items():
            if removed and (folder, name) in self._removed:
                continue
            if inode in folders:
                state[prefix + name] = None
                state |= self._after(inode, f"{prefix}{name}/", folders, removed)
            else:
                state[prefix + name] = self._contents.get(inode, b"")
        return state

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)


def _restore(state: State, root: Path) -> None:
    for name, content in state.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _check_records(staging: Path, tiny: Tiny) -> None:
    arrays, place = {a.name: a for a in tiny.layouts}, LocalFolder(staging)
    for file in (staging / RECORDS).glob("*.json"):
        record = read_record(file.read_bytes())
        for shard in record["shards"]:
            read = read_shard(place, arrays[shard["array"]], record["unit"])
            assert read is not None
            assert read[1]["xxh3_128"] == shard["xxh3_128"]


def _go_on(root: Path, tiny: Tiny, old: dict[str, bytes], expected: dict[str, bytes], progress: int) -> None:
    """What the same command does after the machine is up again."""
    path = root / "features/one"
    contents = files(path)
    # What writers keep is the trace of a kill behind the rename.
    if {name: content for name, content in contents.items() if not name.startswith(f"{WRITING}/")} != expected:
        assert contents == old, sorted(contents.keys() ^ old.keys())
        for folder in path.parent.glob(".staging/*"):
            _check_records(folder, tiny)
        with tiny.begin(path, FeatureStore.open(path) if old else None) as writer:
            assert len(writer.missing_units()) <= writer.n_units - progress
            tiny.finish(writer)
    discard_staging(path, tiny.spec.key)
    assert files(path) == expected
    assert not (path.parent / ".staging").exists()


@pytest.mark.parametrize("extended", [False, True])
def test_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extended: bool) -> None:
    monkeypatch.setattr("store.format.layout.KINDS", ("images", "patch"))  # fewer files, fewer moments
    monkeypatch.setattr(publishing, "LOOKS_S", 0.0)  # nobody is about to publish
    monkeypatch.setattr(publishing, "LOOK_S", 0)
    monkeypatch.setattr(claims, "POLL", 0.001)
    monkeypatch.setattr(claims, "has_ended", lambda content: True)
    new = Tiny(50, (3, 5), lean=True) if extended else Tiny(40, (3,), lean=True)
    expected = dict(new.expected(tmp_path / "expected/one"))
    root = tmp_path / "disk"
    path = root / "features/one"
    root.mkdir()
    base = FeatureStore.open(Tiny(40, (3,), lean=True).make(path)) if extended else None
    old = files(path)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(root, patch)
        with new.begin(path, base) as writer:
            for unit in writer.missing_units():
                assert writer.claim(unit)
                new.write(writer, unit)
                disk.progress += 1
            new.finish(writer)
    disk.close()
    assert files(path) == expected
    kinds = Counter(kind for kind, _, _ in disk.states.values())
    assert kinds["kill"] >= 50, kinds
    assert min(kinds["early"], kinds["late"]) >= 4, kinds  # names are safe as soon as they are given, so few states are new
    for i, (kind, progress, state) in enumerate(disk.states.values()):
        again = tmp_path / "again"
        _restore(state, again)
        try:
            _go_on(again, new, old, expected, progress)
        except (AssertionError, OSError, StoreError) as error:
            raise AssertionError(f"{kind} at {i} of {len(disk.states)}, {progress} units written") from error
        shutil.rmtree(again)
