"""What lists of a data set say: text, XML and MATLAB files. Names never lead out of its folder, and no image is lost."""

import csv
import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

from extract.datasets.gathering import images_in
from extract.datasets.pixels import missing_reader
from extract.datasets.reading import NOWHERE, RemoteFile, content_of, made_of, patiently
from extract.datasets.sample import Box, DataError, Sample
from store import BeyondClsError

XML_PATHS = ("name", "bndbox/xmin", "bndbox/ymin", "bndbox/xmax", "bndbox/ymax")
# Of a MATLAB file: types of elements, and classes of matrices; from the third on to the last those of numbers and text.
MATRIX, COMPRESSED = 14, 15
CELL, STRUCTURE, TEXT, SPARSE, LAST = 1, 2, 4, 5, 15
DAMAGE = (  # what parsers report
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, NotImplementedError, EOFError,
    csv.Error, ElementTree.ParseError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
UNPACKED_NBYTES = 1 << 28  # at most, of a compressed variable; those of published data sets have some millions


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
    """A problem if `folder` has images that are not among `names`, which are all paths in it that its lists hold; without a
    path of this machine, as stores record problems.
    """
    listed_names = {PurePosixPath(name).as_posix() for name in names}
    extra = sorted(name for name in images_in(folder) if name not in listed_names)
    if not extra:
        return []
    return [f"{len(extra)} images in {folder.name} are in no list, e.g. {extra[0]}; complete the lists, or move them away"]


def lines(file: Path | RemoteFile) -> list[str]:
    """Lines of a list that are not blank.

    Raises:
        DataError: it is missing, or not text.
    """
    return [line.strip() for line in text(file).splitlines() if line.strip()]


def text(file: Path | RemoteFile) -> str:
    """The content of a text file.

    Raises:
        DataError: the file is missing, or not text.
    """
    content = content_of(file) if isinstance(file, Path) else file.read_all()
    if content is None:
        raise DataError(f"{file} is not there; it belongs to the data set: get it again")
    try:
        return io.StringIO(content.decode("utf-8-sig"), newline=None).read()
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
    except DAMAGE as error:
        raise DataError(f"{file} is not as expected ({error!r}): {expected}; get it again") from error


def first_folder(root: Path, *names: str) -> Path:
    """The first of some folders of `root` that is there, else the last of them; "" is `root` itself."""
    folders = [root / name for name in names]
    made_of(*folders)
    return next((folder for folder in folders if folder.is_dir()), folders[-1])


def inner_folder(folder: Path, name: str) -> Path:
    """`folder/name` if it exists, else `folder`, which is then taken for it."""
    return first_folder(folder, name, "")


@dataclass(frozen=True)
class XmlObject:
    """An object: the name of its class, corners x0, y0, x1, y1 as published, and whether it is marked as difficult."""

    name: str
    corners: tuple[float, float, float, float]
    is_difficult: bool


def read_objects(file: Path) -> list[XmlObject]:
    """Objects of an XML annotation in the layout of Pascal VOC, which ImageNet shares: `object` with `name`, `bndbox` of xmin,
    ymin, xmax, ymax, and maybe `difficult`.

    A document type is refused before anything is parsed: without one, XML has no entities that could expand or read files.

    Raises:
        DataError: it is not such an annotation.
    """
    content = text(file)
    if "<!DOCTYPE" in content.upper() or "<!ENTITY" in content.upper():
        raise DataError(f"{file} declares a document type or entities, which no published annotation does; do not use it")
    objects = []
    with parsing(file, "object with name and bndbox"):
        for element in ElementTree.fromstring(content).findall("object"):
            values = [element.findtext(path) for path in XML_PATHS]
            if missing := [path for path, value in zip(XML_PATHS, values, strict=True) if not value]:
                raise ValueError(f"an object without {missing[0]}")
            name, x0, y0, x1, y1 = (str(value).strip() for value in values)
            is_difficult = element.findtext("difficult", "0").strip() == "1"
            objects.append(XmlObject(name, (float(x0), float(y0), float(x1), float(y1)), is_difficult))
    return objects


def matlab_variable(file: Path, name: str) -> list[Any]:
    """Elements of a variable of a MATLAB file. scipy reads plain values; it runs nothing that a file holds."""
    try:
        from scipy.io import loadmat
    except ModuleNotFoundError as error:
        raise DataError(f"{file} is a MATLAB file, which needs scipy; install beyondcls[extract]") from error
    if (content := content_of(file)) is None:
        raise DataError(f"{file} is missing; it belongs to the data set: get it again")
    try:
        _check_nesting(content)
        variables = loadmat(io.BytesIO(content), squeeze_me=True, variable_names=[name])
        return list(variables[name].reshape(-1))
    except Exception as error:  # scipy raises many kinds; each becomes a message that names the file
        raise DataError(f"{file} cannot be read ({error!r}): expected a MATLAB file with {name}; get it again") from error


def _check_nesting(content: bytes) -> None:
    """Refuse cells in cells without end, into which scipy descends by calls in C, until the stack overflows.

    They are deeper than calls in Python may be, which is a RecursionError; damage is a ValueError.
    """
    order = "<" if content[126:128] == b"IM" else ">"  # as scipy takes it
    position = len(content) if 0 in content[:4] else 128  # version 4 has no cells
    file = io.BytesIO(content)
    while file.seek(position) < len(content):
        kind, nbytes = _integers(file.read(8), order)
        if kind == COMPRESSED:
            unpacked = zlib.decompressobj().decompress(file.read(nbytes), UNPACKED_NBYTES)
            if len(unpacked) == UNPACKED_NBYTES:
                raise ValueError(f"a variable of more than {UNPACKED_NBYTES} bytes")
            _skip_matrix(io.BytesIO(unpacked), order)
        elif kind == MATRIX:
            file.seek(position)
            _skip_matrix(file, order)
        position += 8 + nbytes


def _integers(content: bytes, order: str) -> tuple[int, ...]:
    return struct.unpack(f"{order}{len(content) // 4}I", content[: len(content) // 4 * 4])


def _element(file: io.BytesIO, order: str) -> bytes:
    """The content of an element that is no matrix."""
    kind, nbytes = _integers(tag := file.read(8), order)
    if kind >> 16:  # both numbers in four bytes, and the content in the next four
        return tag[4 : 4 + (kind >> 16)]
    content = file.read(nbytes)
    file.seek(-nbytes % 8, 1)
    return content


def _skip_matrix(file: io.BytesIO, order: str) -> None:
    """Go on behind a matrix, as scipy reads it: element by element, whatever its tag and that of its flags say."""
    kind, nbytes = _integers(file.read(8), order)
    if kind != MATRIX or not nbytes:
        return
    flags = _integers(file.read(16), order)[2]
    sizes, _ = _integers(_element(file, order), order), _element(file, order)
    n_within, kind = math.prod(sizes), flags & 0xFF
    if kind in (CELL, STRUCTURE):
        if kind == STRUCTURE:
            (length,) = _integers(_element(file, order), order)  # of the name of a field
            n_within *= len(_element(file, order)) // length
        for _ in range(n_within):
            _skip_matrix(file, order)
    elif TEXT <= kind <= LAST:
        for _ in range(1 + (flags >> 11 & 1) + 2 * (kind == SPARSE)):
            _element(file, order)
    else:
        raise ValueError("an object or a function, which no published file has")
