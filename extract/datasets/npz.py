"""Arrays in an .npz: images with their labels, of one split or of several, as NumPy, Keras and MedMNIST write them."""

import shutil
import struct
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Shaped
from numpy.lib import format as npy

from extract.datasets.form import Splitting
from extract.datasets.items import Given
from extract.datasets.listed import parsing
from extract.datasets.objects import arrays_by_split, of_arrays, split_of
from extract.datasets.sample import DataError

LOCAL = struct.Struct("<4s22xHH")  # the header before a member of a zip: what it begins with, bytes of its name and of its rest


def npz(source: str, split: str | None = None) -> Given:
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
            raise DataError(
                f"{source} has arrays {', '.join(members)[:200] or '(none)'}, but no images; call them images, or x_train, …"
            )
        chosen = by_split[split_of(source, split, list(by_split))]
        unpacked = TemporaryDirectory(prefix="beyondcls-")
        arrays = {part: _array(archive, members[name], Path(unpacked.name)) for part, name in chosen.items()}
        return of_arrays(arrays, source, unpacked)


def _array(archive: zipfile.ZipFile, member: str, unpacked: Path) -> Shaped[np.ndarray, "..."]:
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
                raise ValueError(
                    f"{member} has {nbytes:,} bytes unpacked, and {free:,} are free in {unpacked.parent}; set TMPDIR"
                )
            file, begin = unpacked / f"{len(list(unpacked.iterdir()))}", 0
            with file.open("wb") as out:
                shutil.copyfileobj(content, out)
    return np.memmap(file, dtype, "r", begin, shape, "F" if is_fortran else "C")


NPZ = Splitting(
    npz,
    lambda source: source.lower().endswith(".npz"),
)
