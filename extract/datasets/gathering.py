"""The images in a folder, and what else is there: each file is taken, or left out for a reason that is counted."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from extract.datasets.pixels import IMAGE_EXTENSIONS, SIDECARS, UNREAD, extension, image_id, is_image, is_picture
from extract.datasets.reading import NOWHERE, made_of, patiently
from extract.datasets.sample import DataError

T = TypeVar("T")
MOST_LOST = 0.02  # of the images: more that cannot be taken are an error
MOST_WAYS = 100  # in which links may lead to one folder


@dataclass(frozen=True)
class Reason:
    """Why files are left out.

    Attributes:
        words: what they are, before their number.
        is_loss: they are, or seem to be, images.
        hides: it is not known how many images that are.
    """

    words: str
    is_loss: bool = False
    hides: bool = False


OTHER = Reason("files that are no images")
CLUTTER = Reason("clutter of programs, by its name")
BACK = Reason("links to a folder above themselves, which would never end")
FURTHER = Reason("further pictures of an image that is taken")
UNREADABLE = Reason("pictures in a format that is not read here", is_loss=True)
SAME_NAME = Reason("pictures with the name of an image that is taken, in another format")
BESIDE_TARS = Reason("images beside tars, which are read alone", is_loss=True)
BROKEN = Reason("links to images that are not there", is_loss=True)
SPECIAL = Reason("pipes and the like with names of images", is_loss=True)
BROKEN_FOLDER = Reason("links, perhaps to folders of images, that lead nowhere", is_loss=True, hides=True)
LOCKED = Reason("folders or files that this user may not read", is_loss=True, hides=True)

ALL = (OTHER, CLUTTER, BACK, FURTHER, UNREADABLE, SAME_NAME, BESIDE_TARS, BROKEN, SPECIAL, BROKEN_FOLDER, LOCKED)
REASONS = {reason.words: reason for reason in ALL}

CLUTTER_NAMES = {
    "__MACOSX", ".DS_Store", ".ipynb_checkpoints", "Thumbs.db", "ehthumbs.db", "desktop.ini", "@eaDir", "lost+found",
}  # fmt: skip


def is_clutter(name: str) -> bool:
    """Whether programs leave behind files or folders of this name: file managers, archivers, editors."""
    return name in CLUTTER_NAMES or name.startswith("._")


class LeftOut:
    """What of a source is no image of the set, counted by reason, with an example of each."""

    def __init__(self, described: Iterable[tuple[str, int, str]] = ()) -> None:
        self.by_reason = {REASONS[words]: (n, example) for words, n, example in described}

    def add(self, reason: Reason, name: str) -> None:
        """Count a file; the example is the first one by name, however a folder happens to be ordered."""
        n, example = self.by_reason.get(reason, (0, name))
        self.by_reason[reason] = (n + 1, min(example, name))

    @property
    def described(self) -> list[tuple[str, int, str]]:
        """In terms of JSON."""
        return [(reason.words, n, example) for reason, (n, example) in self.by_reason.items()]

    def __bool__(self) -> bool:
        return bool(self.by_reason)

    def __str__(self) -> str:
        """`links to images that are not there: 2 (e.g. cat/0.png), files that are no images: 1 (e.g. cat/notes.txt)`."""
        listed = sorted(self.by_reason.items(), key=lambda item: (not item[0].is_loss, item[0].words))
        return ", ".join(f"{reason.words}: {n:,} (e.g. {example})" for reason, (n, example) in listed)

    @property
    def n_lost(self) -> int:
        """Files that are, or seem to be, images."""
        return sum(n for reason, (n, _) in self.by_reason.items() if reason.is_loss)

    def check(self, source: str, n_taken: int) -> None:
        """Refuse to go on without more than a few of the images, or without a number of images that nobody knows.

        Raises:
            DataError: names what is left out, and the option that allows it.
        """
        n = self.n_lost
        if n > MOST_LOST * (n_taken + n) or any(reason.hides for reason in self.by_reason):
            raise DataError(
                f"{source}: of what seems to be images {n_taken:,} are taken and {n:,} are not; left out: {self}; mend it, or "
                "go on without them: --allow-left-out"
            )


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file below a folder: its path there; its size in bytes, 0 of broken links and of what may not be read; and why it is
    left out, if that is clear from its kind or name.
    """

    name: str
    size: int = 0
    reason: Reason | None = None


def walk(root: Path) -> Iterator[FoundFile]:
    """All files below a folder, behind links too, in no order. Hidden folders directly in it are clutter.

    A link to a folder above itself is not followed: that would never end.

    Raises:
        DataError: a folder is reached in more than `MOST_WAYS` ways: links to folders with links double at each step.
        BeyondClsError: a folder cannot be listed, or a file not be looked at, for another reason than missing permissions.
    """
    real = root.resolve()
    above = frozenset((status.st_dev, status.st_ino) for status in map(os.stat, (real, *real.parents)))
    folders = [(str(root), "", above)]
    ways: Counter[tuple[int, int]] = Counter()
    while folders:
        folder, prefix, chain = folders.pop()
        made_of(folder)
        entries = run_unless_locked(partial(entries_of, folder), folder)
        if entries is None:
            yield FoundFile(prefix.rstrip("/") or ".", reason=LOCKED)
            continue
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if is_clutter(entry.name) or (not prefix and entry.name[0] == "." and (entry.is_dir() or entry.is_symlink())):
                yield FoundFile(name, reason=CLUTTER)
                continue
            status = run_unless_locked(partial(_status, entry), entry.path) or LOCKED
            if isinstance(status, Reason):
                yield FoundFile(name, reason=status)
            elif not stat.S_ISDIR(status.st_mode):
                special = SPECIAL if is_image(name) else OTHER
                yield FoundFile(name, status.st_size, None if stat.S_ISREG(status.st_mode) else special)
            elif (identity := (status.st_dev, status.st_ino)) in chain:
                yield FoundFile(name, reason=BACK)
            else:
                ways[identity] += 1
                if ways[identity] > MOST_WAYS:
                    raise DataError(f"{root} leads to one folder in more than {MOST_WAYS} ways, e.g. {name}; remove links")
                folders.append((entry.path, f"{name}/", chain | {identity}))


def entries_of(folder: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as listing:
        return list(listing)


def run_unless_locked(work: Callable[[], T], path: str) -> T | None:
    """The result of some work, done patiently; None if this user may not do it, which no state of the path shows."""

    def allowed() -> T | None:
        try:
            return work()
        except PermissionError:
            made_of(path, lasts=False)
            return None

    return patiently(allowed, path)


def _status(entry: os.DirEntry[str]) -> os.stat_result | Reason:
    """Of what is behind an entry; or why there is nothing."""
    try:
        return entry.stat()
    except PermissionError:
        raise
    except OSError as error:
        made_of(entry.path)
        if error.errno in NOWHERE and entry.is_symlink():
            return broken_link(entry.name)
        raise


def broken_link(name: str) -> Reason:
    """Why a link is left out that leads nowhere: by its name."""
    return BROKEN if is_image(name) else OTHER if extension(name) in SIDECARS else BROKEN_FOLDER


def gather(root: Path, left_out: LeftOut) -> list[FoundFile]:
    """Images below a folder, by name or else by content, in the order of their paths; `left_out` counts everything else."""
    judged = [(found, found.reason or _reason_to_leave_out(root, found.name)) for found in walk(root)]
    ids = {image_id(found.name) for found, reason in judged if reason is None and extension(found.name) in IMAGE_EXTENSIONS}
    images = []
    for found, reason in judged:
        if reason in (None, UNREADABLE) and extension(found.name) not in IMAGE_EXTENSIONS:
            is_unread = extension(found.name) in UNREAD
            stem = PurePosixPath(found.name).with_suffix("").as_posix() if is_unread else image_id(found.name)
            reason = SAME_NAME if stem in ids else reason
        if reason is None:
            images.append(found)
        else:
            left_out.add(reason, found.name)
    return sorted(images, key=lambda found: found.name.split("/"))


def _reason_to_leave_out(root: Path, name: str) -> Reason | None:
    """Why a file is left out, by its name or its first bytes."""

    def head(nbytes: int) -> bytes:
        made_of(root / name)
        with (root / name).open("rb") as content:
            return content.read(nbytes)

    is_taken = run_unless_locked(partial(is_picture, name, head), str(root / name))
    if is_taken is None:
        return LOCKED
    return None if is_taken else UNREADABLE if extension(name) in UNREAD else OTHER


def images_in(folder: Path) -> Iterator[str]:
    """Paths of all images below `folder`, by name, relative to it; of published data sets, which are complete or damaged.

    Raises:
        DataError: a part may not be read, or is behind a broken link; or as `walk`.
    """
    made_of(folder)
    if not folder.is_dir():
        return
    for found in walk(folder):
        if found.reason is not None and found.reason.hides:
            left_out = LeftOut([(found.reason.words, 1, found.name)])
            raise DataError(f"{folder} cannot be read as a whole: {left_out}")
        if found.reason in (None, BROKEN) and is_image(found.name):
            yield found.name
