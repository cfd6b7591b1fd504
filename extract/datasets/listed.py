"""Images that a list names: untrusted names never lead out of the data set's folder, and no image is lost."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path, PurePosixPath

from extract.datasets.formats import missing_reader
from extract.datasets.gathering import images_in
from extract.datasets.opening import made_of
from extract.datasets.reading import NOWHERE, content_of, patiently
from extract.datasets.sample import Box, DataError, Sample
from store import BeyondClsError


def listed(
    folder: Path,
    name: str,
    labels: tuple[int, ...] | None,
    boxes: Sequence[Box] = (),
    id_: str | None = None,
    outside: bool | None = None,
) -> Sample:
    """The image `name` of `folder`; its `problem` says if it is missing or its boxes are wrong.

    Its id is the name without its extension, unless given. `outside`: as for `inside`.

    Raises:
        DataError: the name leads out of the folder.
    """
    file = inside(folder, name, outside)
    size, problem = patiently(partial(_size, file), str(file))
    if problem:
        made_of(file)
    problem = problem or missing_reader(name)
    problem = problem or next((box.problem for box in boxes if box.problem), None)
    sound = tuple(box for box in boxes if not box.problem)
    return Sample(id_ or PurePosixPath(name).with_suffix("").as_posix(), labels, file, 0, size, problem, sound)


def _size(file: Path) -> tuple[int, str | None]:
    """Of a file, in bytes, and a problem."""
    try:
        size = os.stat(file).st_size
    except FileNotFoundError:
        return 0, "is in the list, but not there"
    except OSError as error:
        if error.errno not in NOWHERE:
            raise
        return 0, f"cannot be read: {error.strerror}"
    return size, None if size else "is empty (0 bytes)"


def inside(folder: Path, name: str, outside: bool | None = None) -> Path:
    """The file `name` of `folder`.

    Args:
        outside: whether the name may lead out of the folder; None: it may not, and no option allows it.

    Raises:
        DataError: the name leads out of the folder.
    """
    path = PurePosixPath(name)
    leads_out = path.is_absolute() or ".." in path.parts
    if "\0" in name or not path.name or path.name == ".." or (leads_out and not outside):
        remedy = "do not use this list"
        if leads_out and outside is not None:
            remedy += ", unless you wrote it yourself: --allow-outside lets its paths lead anywhere"
        raise DataError(f"a list names the image {name!r}, which is not inside {folder}; {remedy}")
    return folder / path


def unlisted(folder: Path, names: Iterable[str]) -> list[str]:
    """A problem if `folder` has images that are not among `names`, which are all paths in it that its lists hold.

    The message has no path of this machine: stores record problems.
    """
    listed_names = {PurePosixPath(name).as_posix() for name in names}
    extra = sorted(name for name in images_in(folder) if name not in listed_names)
    if not extra:
        return []
    return [f"{len(extra)} images in {folder.name} are in no list, e.g. {extra[0]}; complete the lists, or move them away"]


def lines(file: Path) -> list[str]:
    """Lines of a list that are not blank.

    Raises:
        DataError: it is missing, or not text.
    """
    return [line.strip() for line in text(file).splitlines() if line.strip()]


def text(file: Path) -> str:
    """The content of a text file.

    Raises:
        DataError: the file is missing, or not text.
    """
    content = content_of(file)
    if content is None:
        raise DataError(f"{file} is not there; it belongs to the data set: get it again")
    try:
        return StringIO(content.decode("utf-8-sig"), newline=None).read()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start}); get it again") from error


@contextmanager
def parsing(file: Path, expected: str) -> Iterator[None]:
    """Turn errors in parsing `file` into a message that names it.

    Raises:
        DataError: it is not as `expected`.
    """
    try:
        yield
    except BeyondClsError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise DataError(f"{file} is not as expected ({error!r}): {expected}; get it again") from error


def inner_folder(folder: Path, name: str) -> Path:
    """`folder/name` if it exists, else `folder`, which is then taken for it."""
    return folder / name if (folder / name).is_dir() else folder
