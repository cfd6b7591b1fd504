"""Images in columns: tables that Hugging Face writes, in Parquet, or in Arrow as `save_to_disk` leaves them; and arrays in an
.npz, of one split or of several, as NumPy, Keras and MedMNIST write them.
"""

import json
import os
import re
import shutil
import struct
import threading
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped
from numpy.lib import format as npy

from extract.datasets.form import Splitting
from extract.datasets.gathering import entries_of, run_unless_locked
from extract.datasets.items import IMAGE, GivenItems
from extract.datasets.listed import parsing
from extract.datasets.objects import Rows, arrays_by_split, columns_of, of_arrays, split_of
from extract.datasets.pixels import is_image
from extract.datasets.sample import DataError

PARTS_KEPT = 4  # groups of rows that are in memory
OF_SPLIT = re.compile(r"(.+?)-\d+-of-\d+")  # train-00000-of-00002
LOCAL = struct.Struct("<4s22xHH")  # before a member of a zip: what it begins with, bytes of its name and of its rest
EXPECTED = "a table of Parquet, or of Arrow as `datasets` saves it"


class TableColumns:
    """Some columns of files in order, of which a few groups of rows are in memory at a time; in any thread."""

    def __init__(self, files: Sequence[Path], columns: Sequence[str]):
        self._columns, self._lock = list(columns), threading.Lock()
        self._part = lru_cache(PARTS_KEPT)(self._read_group)
        self._places: list[tuple[Path, int, int]] = []  # files, groups and their rows
        for file in files:
            with parsing(file, EXPECTED):
                if file.suffix.lower() == ".arrow":
                    self._places.append((file, 0, _open_rows(file).read_all().num_rows))
                else:
                    meta = _import_pyarrow("parquet").read_metadata(file)
                    self._places += [(file, group, meta.row_group(group).num_rows) for group in range(meta.num_row_groups)]
        self._ends: Int[np.ndarray, " groups"] = np.cumsum([n for *_, n in self._places], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = int(np.searchsorted(self._ends, row, side="right"))
        with self._lock:  # threads that need the same group wait for it
            part = self._part(number)
        values = {name: part.column(name)[row - int(self._ends[number]) + len(part)].as_py() for name in self._columns}
        # Of an image the bytes alone: a table from elsewhere could name any file.
        return {name: value["bytes"] or b"" if isinstance(value, dict) else value for name, value in values.items()}

    def _read_group(self, number: int) -> Any:
        file, group, _ = self._places[number]
        with parsing(file, EXPECTED):
            if file.suffix.lower() == ".arrow":
                return _open_rows(file).read_all()  # stays on the disk
            return _import_pyarrow("parquet").ParquetFile(file).read_row_group(group, columns=self._columns)


def _open_rows(file: Path) -> Any:
    return _import_pyarrow("ipc").open_stream(_import_pyarrow("lib").memory_map(str(file)))


def tables(source: str, split: str | None = None) -> GivenItems:
    """Images of a .parquet, a folder of them, or a folder that `datasets.save_to_disk` has written: a column of encoded images
    (`image`), with `label` and `id` where there are any.

    Names of classes are those that Hugging Face writes into the files. Splits of a folder are in the names of its files:
    `data/train-00000-of-00002.parquet`, `test.parquet`. Images are in the table; a path in it is never followed.
    """
    files = _table_files(Path(source))
    if not files:
        raise DataError(f"there is no table in {source!r}; expected a .parquet, or a folder with train-00000-of-00001.parquet")
    by_split: dict[str, list[Path]] = {}
    for file in files:
        of_several = OF_SPLIT.fullmatch(file.stem)
        name = of_several[1] if of_several else "" if file.stem.isdecimal() else file.stem
        by_split.setdefault(name, []).append(file)
    is_whole = split is None and len(by_split) == 1
    chosen = files if is_whole else by_split[split_of(source, split, list(by_split))]
    features = _features(chosen[0])
    names, class_names = columns_of(features, source)
    for file in chosen[1:]:
        if _features(file) != features:
            raise DataError(f"{file} has other columns or classes than {chosen[0]}; give tables of one data set")
    return GivenItems(Rows(names, TableColumns(chosen, list(names.values()))), class_names, is_threaded=True)


def _table_files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place] if place.is_file() else []
    entries = run_unless_locked(partial(entries_of, place), str(place)) or []
    folders = [entry.path for entry in entries if entry.is_dir()]
    below = [entry for folder in folders for entry in run_unless_locked(partial(entries_of, folder), folder) or []]
    ends = [(entries, (".parquet", ".arrow")), (below, (".parquet",))]
    return sorted(Path(entry) for listed, suffixes in ends for entry in listed if entry.name.endswith(suffixes))


def _features(file: Path) -> Mapping[str, Any]:
    """What the columns of a file are, in the words of Hugging Face."""
    with parsing(file, EXPECTED):
        schema = _open_rows(file).schema if file.suffix.lower() == ".arrow" else _import_pyarrow("parquet").read_schema(file)
        written = (schema.metadata or {}).get(b"huggingface")
        if written is not None and isinstance(features := json.loads(written)["info"]["features"], dict):
            return features
        types = {column.name: str(column.type) for column in schema}
    encoded = {name for name, kind in types.items() if kind.startswith("struct<bytes: binary") or kind.endswith("binary")}
    return {
        name: {"_type": "Image"} if name in encoded and (name in IMAGE or "struct" in types[name]) else {} for name in types
    }


def _import_pyarrow(name: str) -> Any:
    """A module of pyarrow, which few need."""
    try:
        return import_module(f"pyarrow.{name}")
    except ImportError as error:
        raise DataError(f"it is read by pyarrow, which is not installed ({error}): pip install 'beyondcls[parquet]'") from error


def is_tables(source: str) -> bool:
    """Whether it is a .parquet, or a folder of tables without images of its own."""
    place = Path(source)
    if not place.is_dir():
        return source.lower().endswith(".parquet")
    # Images are looked for first, as the first of them is an answer.
    return not any(is_image(name) for _, _, names in os.walk(place) for name in names) and bool(_table_files(place))


def npz(source: str, split: str | None = None) -> GivenItems:
    """Images of an .npz: `images` (or `x`, `data`, `image`, `arr_0`), and `labels` (or `y`, `targets`, `label`, `arr_1`), `ids`
    and `class_names` where there are any. Splits are in the names: `x_train`, or `train_images`.

    Arrays are read where they lie; those that are compressed are unpacked into a temporary file (in $TMPDIR), which goes with
    the images. An array of objects is refused: that is a pickle.
    """
    if not Path(source).is_file():
        raise DataError(f"there is no .npz {source!r}; expected arrays: images and labels, or x_train, y_train, x_test, y_test")
    with parsing(Path(source), "arrays as numpy.savez writes them"), zipfile.ZipFile(source) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        by_split = arrays_by_split(list(members))
        if not by_split:
            raise DataError(f"{source} has arrays {', '.join(members)[:200] or '(none)'}, but no images; call them images")
        chosen = by_split[split_of(source, split, list(by_split))]
        unpacked = TemporaryDirectory(prefix="beyondcls-")
        arrays = {part: _map_array(archive, members[name], Path(unpacked.name)) for part, name in chosen.items()}
        return of_arrays(arrays, source, unpacked)


def _map_array(archive: zipfile.ZipFile, member: str, unpacked: Path) -> Shaped[np.ndarray, "..."]:
    """An array that stays on the disk; raises ValueError where it is damaged, or holds objects."""
    info = archive.getinfo(member)
    with archive.open(info) as content:
        version = npy.read_magic(content)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read_header(content)
        begin = content.tell()
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=object))
        if dtype.hasobject:
            raise ValueError(f"{member} holds objects, which are pickled; write plain arrays")
        if nbytes != info.file_size - begin:
            raise ValueError(f"{member} has {info.file_size - begin} bytes for {nbytes} of {dtype} {list(shape)}")
        if not nbytes:
            return np.zeros(shape, dtype)
        if info.compress_type == zipfile.ZIP_STORED:
            file = Path(str(archive.filename))
            with file.open("rb") as raw:
                raw.seek(info.header_offset)
                _, n_name, n_rest = LOCAL.unpack(raw.read(LOCAL.size))
            begin += info.header_offset + LOCAL.size + n_name + n_rest
        else:
            if nbytes > (free := shutil.disk_usage(unpacked).free):
                raise ValueError(f"{member} has {nbytes:,} bytes unpacked, {free:,} are free in {unpacked.parent}; set TMPDIR")
            file, begin = unpacked / f"{len(list(unpacked.iterdir()))}", 0
            with file.open("wb") as out:
                shutil.copyfileobj(content, out)
    return np.memmap(file, dtype, "r", begin, shape, "F" if is_fortran else "C")


TABLES = Splitting(tables, is_tables)
NPZ = Splitting(npz, lambda source: source.lower().endswith(".npz"))
