"""The images in a folder, and what else is there: each file is taken, or left out for a reason that is counted."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from extract.datasets.formats import (
    HEAD_NBYTES,
    IMAGE_EXTENSIONS,
    SIDECARS,
    UNREAD,
    begins_as_image,
    extension,
    image_id,
    is_image,
)
from extract.datasets.opening import made_of
from extract.datasets.reading import NOWHERE, patiently
from extract.datasets.sample import DataError

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
    "__MACOSX",
    ".DS_Store",
    ".ipynb_checkpoints",
    "Thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "@eaDir",
    "lost+found",
}


def is_clutter(name: str) -> bool:
    """Whether programs leave behind files or folders of this name: file managers, archivers, editors."""
    return name in CLUTTER_NAMES or name.startswith("._")


class LeftOut:
    """What of a source is no image of the set, counted by reason, with an example of each."""

    def __init__(self) -> None:
        self.by_reason: dict[Reason, tuple[int, str]] = {}

    def add(self, reason: Reason, name: str) -> None:
        """Count a file; the example is the first one by name, however a folder happens to be ordered."""
        n, example = self.by_reason.get(reason, (0, name))
        self.by_reason[reason] = (n + 1, min(example, name))

    @property
    def described(self) -> list[tuple[str, int, str]]:
        """In terms of JSON."""
        return [(reason.words, n, example) for reason, (n, example) in self.by_reason.items()]

    @classmethod
    def of(cls, described: Iterable[tuple[str, int, str]]) -> "LeftOut":
        """From its description."""
        left_out = cls()
        for words, n, example in described:
            left_out.by_reason[REASONS[words]] = (n, example)
        return left_out

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
class Found:
    """A file below a folder: its path there, in bytes its size; and why it is left out, if that is clear from its kind or name.

    Of broken links and of what may not be read the size is 0.
    """

    name: str
    size: int = 0
    reason: Reason | None = None


def walk(root: Path) -> Iterator[Found]:
    """All files below a folder, behind links too, in no order. Hidden folders directly in it are clutter.

    A link to a folder above itself is not followed: that would never end.

    Raises:
        DataError: a folder is reached in more than `MOST_WAYS` ways: links to folders with links double at each step.
        BeyondClsError: a folder cannot be listed, or a file not be looked at, for another reason than missing permissions.
    """
    real = root.resolve()
    above = frozenset(_identity(folder.stat()) for folder in (real, *real.parents))
    folders = [(str(root), "", above)]
    ways: Counter[tuple[int, int]] = Counter()
    while folders:
        folder, prefix, chain = folders.pop()
        made_of(folder)
        entries = patiently(partial(_entries, folder), folder)
        if entries is None:
            yield Found(prefix.rstrip("/") or ".", reason=LOCKED)
            continue
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if is_clutter(entry.name) or (not prefix and entry.name[0] == "." and (entry.is_dir() or entry.is_symlink())):
                yield Found(name, reason=CLUTTER)
                continue
            status = patiently(partial(_status, entry), entry.path)
            if isinstance(status, Reason):
                yield Found(name, reason=status)
            elif not stat.S_ISDIR(status.st_mode):
                special = SPECIAL if is_image(name) else OTHER
                yield Found(name, status.st_size, None if stat.S_ISREG(status.st_mode) else special)
            elif (identity := _identity(status)) in chain:
                yield Found(name, reason=BACK)
            else:
                ways[identity] += 1
                if ways[identity] > MOST_WAYS:
                    raise DataError(
                        f"{root} leads to one folder in more than {MOST_WAYS} ways, e.g. {name}; remove the links to it"
                    )
                folders.append((entry.path, f"{name}/", chain | {identity}))


def _entries(folder: str) -> list[os.DirEntry[str]] | None:
    """What is directly in a folder; None if it may not be listed."""
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except PermissionError:
        made_of(folder, lasts=False)
        return None


def _status(entry: os.DirEntry[str]) -> os.stat_result | Reason:
    """Of what is behind an entry; or why there is nothing."""
    try:
        return entry.stat()
    except PermissionError:
        made_of(entry.path, lasts=False)
        return LOCKED
    except OSError as error:
        made_of(entry.path)
        if error.errno in NOWHERE and entry.is_symlink():
            return broken_link(entry.name)
        raise


def broken_link(name: str) -> Reason:
    """Why a link is left out that leads nowhere: by its name."""
    return BROKEN if is_image(name) else OTHER if extension(name) in SIDECARS else BROKEN_FOLDER


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def gather(root: Path, left_out: LeftOut) -> list[Found]:
    """Images below a folder, by name or else by content, in the order of their paths; `left_out` counts everything else.

    Raises:
        DataError: as `walk`.
    """
    judged = [(found, found.reason or _reason(root, found.name)) for found in walk(root)]
    ids = {image_id(found.name) for found, reason in judged if reason is None and extension(found.name) in IMAGE_EXTENSIONS}
    images = []
    for found, reason in judged:
        if reason in (None, UNREADABLE) and extension(found.name) not in IMAGE_EXTENSIONS and _stem(found.name) in ids:
            reason = SAME_NAME
        if reason is None:
            images.append(found)
        else:
            left_out.add(reason, found.name)
    return sorted(images, key=lambda found: found.name.split("/"))


def _stem(name: str) -> str:
    return PurePosixPath(name).with_suffix("").as_posix() if extension(name) in UNREAD else image_id(name)


def _reason(root: Path, name: str) -> Reason | None:
    """Why a file is left out, by its name or its first bytes."""
    if is_image(name):
        return None
    end = extension(name)
    if end in UNREAD:
        return UNREADABLE
    if end in SIDECARS:
        return OTHER
    made_of(root / name)
    head = patiently(partial(_head, root / name), str(root / name))
    return LOCKED if head is None else None if begins_as_image(head) else OTHER


def _head(file: Path) -> bytes | None:
    """The first bytes of a file; None if it may not be read."""
    try:
        with file.open("rb") as content:
            return content.read(HEAD_NBYTES)
    except PermissionError:
        made_of(file, lasts=False)
        return None


def images_in(folder: Path) -> Iterator[str]:
    """Paths of all images below `folder`, by name, relative to it; of published data sets, which are complete or damaged.

    Raises:
        DataError: some of it may not be read, or is behind a broken link; or as `walk`.
    """
    made_of(folder)
    if not folder.is_dir():
        return
    for found in walk(folder):
        if found.reason is not None and found.reason.hides:
            left_out = LeftOut()
            left_out.add(found.reason, found.name)
            raise DataError(f"{folder} cannot be read as a whole: {left_out}")
        if found.reason in (None, BROKEN) and is_image(found.name):
            yield found.name
