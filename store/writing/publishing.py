"""Publication: a finished folder gets its name without replacing anything that its run did not find when it began."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from store.errors import StoreError
from store.format.layout import KINDS, groups_of
from store.format.reader import FeatureStore
from store.places.disk import OLD, PARTIAL, TOKEN, check_no_links, exchange, link, sync_folder
from store.writing.journal import JOURNAL, journals, read_records
from store.writing.lock import Lock, holder

STAGING = ".staging"  # folder beside the sets, for what is being written
UNNAMED = ".unnamed"  # folder of shards that have no name yet
BY_GIT = ".gitignore"  # DVC writes it beside the outs that a folder holds; it is kept
SHOWN = 3  # names in a message
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


@dataclass(frozen=True)
class Found:
    """What was at the place of a feature set when a run began, which is all that the run may replace.

    Attributes:
        path: the place.
        content: the zarr.json there; None without one.
        replaces: whether a set, or the remains of one, may be replaced; else the place must hold no file.
    """

    path: Path
    content: bytes | None = None
    replaces: bool = False

    @classmethod
    def at(cls, path: Path, replaces: bool = True) -> "Found":
        return cls(path, _content(path), replaces)

    def check(self, folder: Path | None = None) -> None:
        """See that nothing else has come there since.

        Args:
            folder: where it is now, if it was moved away.

        Raises:
            StoreError: another set, or files that belong to none.
        """
        folder = folder or self.path
        if folder.is_symlink() or folder.is_file():
            kind = f"a link to {os.readlink(folder)}" if folder.is_symlink() else "a file"
            raise StoreError(f"{self.path} is {kind}, expected a folder; give another --out, or move it away first")
        if not self.replaces:
            if strangers := _shown(folder, lambda f: (p for p in f.rglob("*") if p.is_symlink() or not p.is_dir())):
                raise StoreError(f"{self.path} already holds files ({strangers}); give another --out, or remove it first")
        elif strangers := _shown(folder, foreign):
            raise StoreError(
                f"{self.path} holds files that do not belong to a feature set ({strangers}) and would be removed with it; move "
                "them away first, or give another --out"
            )
        elif _content(folder) != self.content:
            raise StoreError(f"{self.path} holds another feature set than when this run began, which is not replaced")


def publish(staging: Path, path: Path, found: Found, remedy: str = "") -> None:
    """Give a finished folder its name, in one step; then remove the set that was found there.

    Args:
        remedy: how to make use of the set where something is in its way; by default that of an extraction.

    Raises:
        StoreError: something else is there; it stays, and so does the finished folder.
    """
    try:
        found.check()
        if not os.path.lexists(path):
            _rename(staging, path)
        else:
            exchange(staging, path)
            sync_folder(path.parent)  # before anything of the old set is removed
            sync_folder(staging.parent)
            try:
                found.check(staging)  # nobody can add to it by its name any more
            except StoreError:
                exchange(staging, path)
                raise
            _discard(staging, path)
    except StoreError as error:
        remedy = remedy or f"the same command with another --out in {path.parent} publishes it without computing it again"
        raise StoreError(f"{error}. Nothing was lost: the finished set is in {staging}, and {remedy}") from error
    sync_folder(path.parent)
    _discard(staging.with_name(staging.name + OLD), path)


def _rename(source: Path, target: Path) -> None:
    """Rename a folder to a name that nothing has but, at most, an empty folder."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        raise StoreError(f"{target} was made by others since this run began, and is not replaced") from error


def staging_of(path: Path, key: str) -> Path:
    """The folder of a feature set until it is finished and at `path`."""
    return path.parent / STAGING / f"{path.name}-{key}"


def refused_sets(folder: Path, key: str) -> Iterator[FeatureStore]:
    """Finished sets of a key that could not be published in a folder, as something was in their way."""
    for staged in sorted((folder / STAGING).glob(f"*-{key}")):
        if journals(staged) and holder(staged.with_name(f"{staged.name}.lock")) is None:
            with contextlib.suppress(StoreError):  # not finished, or gone this moment
                yield FeatureStore.open(staged, key)


def discard_staging(path: Path, key: str) -> None:
    """Remove what a kill during `finish` may have left behind; nothing while a writer is at work there.

    Raises:
        StoreError: there are files that no writer has made; or a process is writing there.
    """
    if read_records(path):  # else it is no journal
        (path / JOURNAL).unlink(missing_ok=True)
    staging = staging_of(path, key)
    left = [folder for folder in (staging, staging.with_name(staging.name + OLD)) if folder.exists()]
    if left:
        lock = Lock(staging.with_name(staging.name + ".lock"), str(path))
        try:
            for folder in left:
                _discard(folder, path)
        finally:
            lock.release()
        with contextlib.suppress(OSError):
            staging.parent.rmdir()


def discard(folder: Path) -> None:
    """Remove a folder that writers have made, or a set that they have put there to be removed.

    Raises:
        StoreError: others have put files there.
    """
    check_no_links(folder)
    check_own(folder)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def check_own(folder: Path, kind: str = "") -> None:
    """See that all below a folder, or below a kind of arrays in it, belongs to a feature set or its writer.

    Raises:
        StoreError: others have put files there.
    """
    if strangers := _shown(folder, lambda f: (p for p in foreign(f) if p.is_relative_to(f / kind))):
        raise StoreError(f"{folder / kind} would be removed, with files of others ({strangers}); move them away, and try again")


def _discard(folder: Path, path: Path) -> None:
    """Remove a set that another has replaced at `path`."""
    if (folder / BY_GIT).is_file() and not (path / BY_GIT).exists():
        link(folder / BY_GIT, path / BY_GIT)
    discard(folder)


def foreign(folder: Path) -> Iterator[Path]:
    """Paths below a folder that belong neither to a feature set, whose zarr.json would list them, nor to its writer."""
    file, folder_pattern = file_names()
    try:
        arrays = list(FeatureStore.describe(folder).attributes["arrays"])
        listed = {"", UNNAMED, *arrays, *groups_of(arrays)}
    except StoreError:  # damaged, or not finished
        listed = None
    for root, folders, names in os.walk(folder):
        for name in sorted(names):
            path = Path(root, name)
            inside = path.relative_to(folder).as_posix()
            array = inside.partition("/c/")[0] if "/c/" in inside else inside.rpartition("/")[0]
            is_ours = file.fullmatch(inside) and (listed is None or array in listed)
            if inside == JOURNAL and folder.parent.name != STAGING:  # there it is a writer's, even if it is damaged
                is_ours = bool(read_records(folder))
            if not is_ours:
                yield path
        for name in sorted(folders):
            path = Path(root, name)
            if path.is_symlink() or not folder_pattern.fullmatch(path.relative_to(folder).as_posix()):
                yield path


def file_names() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of files and folders of a feature set or its writer, by their path inside it."""
    group = rf"(?:{'|'.join(KINDS)})(?:/[\w-]{{1,100}})*"
    staged = rf"{JOURNAL}(?:\.[\w.]+-\d+-\d{{15,}})?|{re.escape(UNNAMED)}/[\w.-]+"
    file = re.compile(rf"(?:{staged}|zarr\.json|{group}/zarr\.json|{group}/c/\d+(?:/0)*)(?:(?:{TOKEN})?{PARTIAL})?", re.ASCII)
    return file, re.compile(rf"{group}|{re.escape(UNNAMED)}", re.ASCII)  # chunk folders fit the first too


def _shown(folder: Path, strangers: Callable[[Path], Iterator[Path]]) -> str:
    """Some of the files that would be lost with a folder; empty folders, and what DVC writes again, do not count."""
    files = (p for p in strangers(folder) if p.is_symlink() or not p.is_dir())
    inside = (p.relative_to(folder).as_posix() for p in files)
    names = list(islice((name for name in inside if name != BY_GIT), SHOWN + 1))
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def _content(folder: Path) -> bytes | None:
    try:
        return (folder / "zarr.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
