"""Arrays whose headers state more than their files hold: refused before memory is taken."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from probe.result_files import array_of
from store import BeyondClsError

EXPECTED = "an array [N, T]; run its stage again"


def stated(shape: str, dtype: str = "<f8", content: bytes = bytes(64)) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + content


def written(folder: Path, content: bytes, member: str | None, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    file = folder / "a.npy"
    if member is None:
        file.write_bytes(content)
    else:
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr(f"{member}.npy", content)
    return file


@pytest.mark.parametrize("member", [None, "correct"])
@pytest.mark.parametrize("values", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3) > 0), np.zeros((0, 4))], ids=str)
def test_sound(values: np.ndarray, member: str | None, tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, values)
    read = array_of(written(tmp_path, content.getvalue(), member), EXPECTED, member)
    assert (read.dtype, read.shape) == (values.dtype, values.shape)
    assert np.array_equal(read, values)


@pytest.mark.parametrize("member", [None, "correct"])
@pytest.mark.parametrize(
    "content",
    [
        stated("(1 << 37, 4)".replace("1 << 37", str(1 << 37))),
        stated(f"({2**62}, 4)"),
        stated("(-1, 8)"),
        stated("(9,)"),
        stated("(1,)", "<U1000000000"),
        stated("(8,)", "|O"),
        stated("(" * 3000 + "8,"),
        stated("(8,)")[:50],
        b"",
    ],
    ids=lambda content: str(content[60:90]),
)
def test_what_a_header_states(content: bytes, member: str | None, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=r"a\.npy is damaged \(.*\), expected an array \[N, T\]; run its stage again"):
        array_of(written(tmp_path, content, member), EXPECTED, member)


def test_what_unpacks_to_much_more(tmp_path: Path) -> None:
    content = stated(f"({1 << 22},)", content=bytes(8 << 22))
    with pytest.raises(BeyondClsError, match=r"its correct would unpack to 33554560 bytes"):
        array_of(written(tmp_path, content, "correct", zipfile.ZIP_LZMA), EXPECTED, "correct")
