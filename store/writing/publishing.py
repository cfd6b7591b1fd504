"""Where a set is written, and publication: it gets its name without replacing what its run did not find when it began."""

import contextlib
import errno
import os
import random
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from store.errors import StoreError
from store.format.layout import KINDS, groups_of
from store.format.reader import FeatureStore
from store.format.spec import key_in
from store.format.unfinished import CLAIMS, HEADER, RECORDS, UNNAMED, WRITING, is_of_writers
from store.places import LocalFolder, SharedPlace, disk
from store.places.object_store import ObjectStore
from store.writing import claims
from store.writing.claims import CLAIM, holder

STAGING = ".staging"  # folder next to the sets, for what is being written
PUBLISHING = ".publishing"  # ends the name of a folder whose process is about to publish it, or has replaced a set by it
BY_GIT = ".gitignore"  # DVC writes it next to the outs that a folder holds; it is kept
SHOWN = 3  # names in a message
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
LOOKS_S, LOOK_S = 1.0, 0.05  # for a set that another process is about to publish, and between looks


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
        return cls(path, disk.content_of(path / "zarr.json"), replaces)

    def check(self, folder: Path | None = None) -> None:
        """See that nothing else has come there since, or to `folder` to which it was moved away."""
        folder = folder or self.path
        if folder.is_symlink() or folder.is_file():
            kind = f"a link to {os.readlink(folder)}" if folder.is_symlink() else "a file"
            raise StoreError(f"{self.path} is {kind}, expected a folder; give another --out, or move it away first")
        if not self.replaces:
            if strangers := _list_files(folder, folder.rglob("*")):
                raise StoreError(f"{self.path} already holds files ({strangers}); give another --out, or remove it first")
        elif strangers := _list_files(folder, foreign(folder)):
            raise StoreError(
                f"{self.path} holds files that do not belong to a feature set ({strangers}) and would be removed with it; move "
                "them away first, or give another --out"
            )
        elif os.path.lexists(folder) and disk.content_of(folder / "zarr.json") != self.content:  # if it is gone, nothing is
            raise StoreError(f"{self.path} holds another feature set than when this run began, which is not replaced")


def publish(staging: Path, path: Path, found: Found, remedy: str = "") -> bool:
    """Give a finished folder its name, in one step; then remove the set that was found there, and what writers keep.

    Args:
        remedy: how to make use of the set where something is in its way; by default that of an extraction.

    Returns:
        False if another process has taken the folder to publish it.

    Raises:
        StoreError: something else is there; it stays, and so does the finished folder.
    """
    own = staging.with_name(f"{staging.name}.{secrets.token_hex(8)}{PUBLISHING}")
    try:
        os.rename(staging, own)  # one process alone can; from here on, nobody else writes there
    except FileNotFoundError:
        return False
    try:
        disk.remove_partials(own)
        found.check()
        if not os.path.lexists(path):
            try:
                os.rename(own, path)
            except OSError as error:
                if error.errno in _IN_THE_WAY:
                    raise StoreError(f"{path} was made by others since this run began, and is not replaced") from error
                raise
        else:
            disk.exchange(own, path)
            disk.sync_folder(path.parent)  # before anything of the old set is removed
            disk.sync_folder(own.parent)
            try:
                found.check(own)  # nobody can add to it by its name any more
            except StoreError:
                disk.exchange(own, path)
                raise
            _discard(own, path)
    except FileNotFoundError:
        if own.exists():
            raise
        return False  # this process was stopped, and another has taken the folder over
    except StoreError as error:
        with contextlib.suppress(OSError):
            os.rename(own, staging)
        remedy = remedy or f"the same command with another --out in {path.parent} publishes it without computing it again"
        raise StoreError(f"{error}. Nothing was lost: the finished set is in {staging}, and {remedy}") from error
    disk.sync_folder(path.parent)
    discard_records(LocalFolder(path))
    return True


def staging_of(path: Path, key: str) -> Path:
    """The folder of a feature set until it is finished and at `path`."""
    return path.parent / STAGING / f"{path.name}-{key}"


def refused_sets(folder: Path, key: str) -> Iterator[FeatureStore]:
    """Finished sets of a key that could not be published in a folder, as something was in their way."""
    for staged in sorted((folder / STAGING).glob(f"*-{key}")):
        if (staged / HEADER).is_file() and holder(LocalFolder(staged)) is None:
            with contextlib.suppress(StoreError):  # not finished, or gone this moment
                yield FeatureStore.open(staged, key)


def discard_staging(path: Path, key: str) -> None:
    """Remove what a kill may have left behind of a set that is published; nothing while a writer is at work there."""
    discard_records(LocalFolder(path))
    staging = staging_of(path, key)
    taken = (left for end in ("", disk.OLD) for left in staging.parent.glob(f"{staging.name}.*{PUBLISHING}{end}"))
    for folder in (staging, *taken):
        if folder.exists() and holder(LocalFolder(folder)) is None:
            _discard(folder, path)
    with contextlib.suppress(OSError):
        staging.parent.rmdir()


def discard_records(place: SharedPlace) -> None:
    """Remove what writers keep with a finished set, the header first: without it, nobody takes units for missing."""
    names = set(place.times(WRITING))
    place.remove([HEADER] if HEADER in names else [])
    if isinstance(place, LocalFolder):
        shutil.rmtree(place.folder / WRITING, ignore_errors=True)
        return
    # All tasks of a set come here at once, and services remove slowly: each takes a few that it draws, then looks what is left.
    n = 64
    while left := names - {HEADER}:
        place.remove(random.sample(sorted(left), min(n, len(left))))
        names, n = set(place.times(WRITING)), 2 * n
        if len(names - {HEADER}) >= len(left):  # the service removes nothing, or a claim came once more
            break


def discard(folder: Path) -> None:
    """Remove a folder that writers have made, or a set that they have put there to be removed."""
    disk.check_no_links(folder)
    check_own(folder)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def check_own(folder: Path, kind: str = "") -> None:
    """See that all below a folder, or below a kind of arrays in it, belongs to a feature set or its writer."""
    if strangers := _list_files(folder, (p for p in foreign(folder) if p.is_relative_to(folder / kind))):
        raise StoreError(f"{folder / kind} would be removed, with files of others ({strangers}); move them away, and try again")


def _discard(folder: Path, path: Path) -> None:
    """Remove a set that another has replaced at `path`."""
    if (folder / BY_GIT).is_file():
        LocalFolder(path).link(folder / BY_GIT, BY_GIT)
    discard(folder)


def foreign(folder: Path) -> Iterator[Path]:
    """Paths below a folder that belong neither to a feature set, whose zarr.json would list them, nor to its writer."""
    file, folder_pattern = file_names()
    try:
        arrays = list(FeatureStore.describe(folder).attributes["arrays"])
        listed = {"", *arrays, *groups_of(arrays)}
    except StoreError:  # damaged, or not finished
        listed = None
    for root, folders, names in os.walk(folder):
        for path in (Path(root, name) for name in sorted(names)):
            inside = path.relative_to(folder).as_posix()
            array = inside.partition("/c/")[0] if "/c/" in inside else inside.rpartition("/")[0]
            if not file.fullmatch(inside) or not (listed is None or array in listed or is_of_writers(inside)):
                yield path
        for path in (Path(root, name) for name in sorted(folders)):
            if path.is_symlink() or not folder_pattern.fullmatch(path.relative_to(folder).as_posix()):
                yield path


def file_names() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of files and folders of a feature set or its writer, by their path inside it."""
    group = rf"(?:{'|'.join(KINDS)})(?:/[\w-]{{1,100}})*"
    staged = rf"{re.escape(HEADER)}|{re.escape(RECORDS)}/\d+\.json|{re.escape(CLAIMS)}/\d+-\d+|{re.escape(UNNAMED)}/[\w.-]+"
    file = rf"(?:{staged}|zarr\.json|{group}/zarr\.json|{group}/c/\d+(?:/0)*)(?:(?:{disk.TOKEN})?{disk.PARTIAL})?"
    kept = "|".join(re.escape(name) for name in (WRITING, RECORDS, CLAIMS, UNNAMED))
    return re.compile(file, re.ASCII), re.compile(rf"{group}|{kept}", re.ASCII)  # chunk folders fit the first too


def _list_files(folder: Path, paths: Iterable[Path]) -> str:
    """Some of the files that would be lost with a folder; empty folders, and what DVC writes again, do not count."""
    files = (p.relative_to(folder).as_posix() for p in paths if p.is_symlink() or not p.is_dir())
    names = list(islice((name for name in files if name != BY_GIT), SHOWN + 1))
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def _is_at_work(folder: Path) -> bool:
    """Whether the process that has taken a folder to publish it may be alive: its claim is the last, on no unit."""
    place = LocalFolder(folder)
    names = [name for name in place.times(CLAIMS) if CLAIM.fullmatch(name)]
    last = max(names, key=lambda name: [int(number) for number in CLAIM.fullmatch(name).groups()], default=None)  # type: ignore[union-attr]
    return last is not None and not claims.has_ended(place.content_now(last))


class InFolder:
    """Beside its place, in `.staging/NAME-KEY`: a set appears there whole, and may take the place of another.

    Whoever publishes it first renames the staging folder to a name of its own, which one process alone can. If that process
    is killed, another gives the folder its name back.

    Args:
        found: what was at `path` when this run began.

    Attributes:
        place: in which its files are created; any number of processes may do so.
        where: its address when it is finished, for messages.
    """

    def __init__(self, path: Path, key: str, found: Found):
        self.path, self.where, self._key, self._found = path, str(path), key, found
        self.staging = staging_of(path, key)
        self.place = LocalFolder(self.staging, UNNAMED)

    def is_published(self) -> bool:
        """Whether the finished set is there. While another process publishes it this waits, as long as that seems alive."""
        began = time.monotonic()
        while True:
            content = disk.content_of(self.path / "zarr.json")
            if content is not None and content != self._found.content and key_in(content) == self._key:
                return True
            if not (taken := self._folders_taken()):
                return False
            waited = time.monotonic() - began
            if waited > claims.SECONDS or (waited > LOOKS_S and not any(map(_is_at_work, taken))):
                break
            time.sleep(LOOK_S)
        for left in taken:  # by a process that was killed
            if not (self.staging / HEADER).exists():
                with contextlib.suppress(OSError):
                    self.staging.rmdir()
                with contextlib.suppress(OSError):  # another was faster
                    os.rename(left, self.staging)
        return False

    def _folders_taken(self) -> list[Path]:
        """Folders of this set that a process was about to publish."""
        return [f for f in self.staging.parent.glob(f"{self.staging.name}.*{PUBLISHING}") if (f / HEADER).is_file()]

    def begin(self, files: Collection[str]) -> None:
        """Prepare the place for a set of these files."""
        try:
            self._found.check()
        except StoreError:
            if self.is_published():  # another has just done so
                raise FileNotFoundError(self.path) from None
            raise
        disk.make_folder(self.staging / UNNAMED)
        for left in filter(disk.is_abandoned, (self.staging / UNNAMED).iterdir()):
            left.unlink(missing_ok=True)

    def publish(self) -> None:
        """Give the set its name, now that all of it is there, unless another process does; and remove what writers keep.

        Raises:
            StoreError: something is in the way; nothing is lost.
        """
        if not publish(self.staging, self.path, self._found) and not self.is_published():
            if (self.staging / HEADER).exists():  # others took this process for killed, and gave the folder its name back
                raise FileNotFoundError(self.staging)
            raise StoreError(f"{self.staging} was removed while it was being written; give the command again")

    def tidy(self) -> None:
        """Remove what a writer has begun next to a finished set, or found empty."""
        if self.is_published() and self.staging.is_dir():
            discard(self.staging)
        with contextlib.suppress(OSError):  # something is staged there
            self.staging.parent.rmdir()

    @contextlib.contextmanager
    def reporting(self, needed: int) -> Iterator[None]:
        """Turn a lack of space into a message; `needed`: bytes that are still to be written."""
        try:
            yield
        except OSError as error:
            if error.errno not in disk.NO_SPACE:
                raise
            raise StoreError(
                f"no space left while writing {self.path}: what is written is safe in {self.staging}; {needed / 1e9:.3g} GB "
                f"more are needed, {disk.room_left(error, self.path.parent)}, and give the same command again"
            ) from error


class InObjectStore:
    """As `InFolder`, at its final address, where the group's zarr.json, which is written last, makes it a feature set."""

    def __init__(self, place: ObjectStore, key: str):
        if not place.can_create:
            raise StoreError(f"{place.url} is of no service that writes a file only where there is none; give --out, a folder")
        self.place, self.where, self._key = place, place.url, key

    def is_published(self) -> bool:
        """Whether the finished set is there; a StoreError if another one is."""
        if (content := self.place.content_now("zarr.json")) is None:
            return False
        if (key := key_in(content)) != self._key:
            raise StoreError(f"{self.where} holds another feature set, of key {key}; remove it, or choose another root")
        return True

    def begin(self, files: Collection[str]) -> None:
        there = self.place.sizes().keys()
        if "zarr.json" in there:  # another has just published it
            raise FileNotFoundError(self.where)
        if foreign := sorted(name for name in there - set(files) if not is_of_writers(name)):
            raise StoreError(
                f"{self.where} holds {len(foreign)} files that do not belong to this set, first {foreign[0]}; "
                "was it begun with other shards? Remove them, or choose another root"
            )

    def publish(self) -> None:
        discard_records(self.place)

    def tidy(self) -> None:
        if self.is_published():
            discard_records(self.place)

    def reporting(self, needed: int) -> AbstractContextManager[None]:
        return nullcontext()
