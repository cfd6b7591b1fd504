"""Names, index arithmetic and bytes of a shard, against closed forms and against zarr."""

import json
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from store import ArrayLayout
from store.format.layout import CHUNK_ROWS, ArrayName, kind_of, shard_rows_of
from tests.store.conftest import shard_bytes, zarr_twin


def _layout(n: int, shard_rows: int = 64, dtype: str = "float32") -> ArrayLayout:
    return ArrayLayout("patch/block5/view0", (n, 2, 3), dtype, ("image", "patch", "channel"), shard_rows)


@pytest.mark.parametrize(
    ("row_nbytes", "n_rows", "expected"),
    [
        (10, 0, CHUNK_ROWS),
        (1 << 20, 320, CHUNK_ROWS),  # a sixteenth are 20 rows, 20 MiB
        (1 << 20, 1024, 64),
        (1 << 10, 1024, 4096),  # 4 MiB are more than the whole set
        (1 << 20, 10**6, 512),  # 512 MiB at most
        (1 << 30, 100, CHUNK_ROWS),
    ],
)
def test_rows_of_a_shard_by_default(row_nbytes: int, n_rows: int, expected: int) -> None:
    assert shard_rows_of(row_nbytes, n_rows) == expected


@pytest.mark.parametrize(
    ("tail", "chunk_rows", "expected"),
    [
        ((1,), 32, 32),
        ((512,), 32, 32),  # 64 KiB are 32 rows of 2 KiB
        ((513,), 32, 32),
        ((1024,), 32, 16),
        ((1023,), 32, 32),  # 16 rows would be less
        ((16384,), 32, 1),
        ((10**6,), 32, 1),
        ((1024,), 24, 24),  # 16 do not divide it
    ],
)
def test_rows_that_share_a_digest(tail: tuple[int, ...], chunk_rows: int, expected: int) -> None:
    layout = ArrayLayout("patch/block5/view0", (5, *tail), "float32", ("image", "channel"), chunk_rows * 2, chunk_rows)
    assert layout.checked_rows == expected


def test_file_names() -> None:
    assert _layout(65).file(1) == "patch/block5/view0/c/1/0/0"
    assert ArrayLayout("images/label", (5,), "int64", ("image",)).file(0) == "images/label/c/0"


def test_shard_bytes() -> None:
    """Rows, zeros up to a whole chunk, a digest of the chunk, an index entry for each of four chunks, CRC-32C."""
    layout = _layout(3 + 128, shard_rows=128)
    rows = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    data = shard_bytes(layout, 1, rows)
    assert data[:72] == rows.astype("<f4").tobytes()
    assert data[72 : 32 * 24] == bytes(32 * 24 - 72)
    assert data[32 * 24 : 32 * 24 + 16] == xxhash.xxh3_128_digest(data[: 32 * 24])
    index = data[32 * 24 + 16 :]
    absent = 2**64 - 1
    assert np.frombuffer(index[:-4], "<u8").tolist() == [0, 32 * 24, *[absent] * 6]
    assert int.from_bytes(index[-4:], "little") == google_crc32c.value(index[:-4])
    assert len(data) == layout.nbytes(1) == 32 * 24 + 16 + 4 * 16 + 4


def test_layout_of_its_own_metadata(tmp_path: Path) -> None:
    layout = _layout(75, dtype="uint8")
    assert ArrayLayout.from_zarr(layout.name, dict(zarr_twin(tmp_path / "z", layout).metadata.to_dict())) == layout
    for codec in (None, "int4"):
        written = replace(layout, codec=codec)
        assert ArrayLayout.from_zarr(layout.name, json.loads(written.to_zarr({"shards": []}))) == written


NAMES = {
    "images/label": ArrayName("images", "label"),
    "images/crop/view1": ArrayName("images", "crop", None, 1),
    "norm/weight": ArrayName("norm", "weight"),
    "cls/block0/view0": ArrayName("cls", "", 0, 0),
    "patch/block11/view3": ArrayName("patch", "", 11, 3),
    "patch/block11/view3-scale": ArrayName("patch", "", 11, 3, is_scale=True),
    "statistics/cls_self/view0": ArrayName("statistics", "cls_self", None, 0),
    "attention/cls/block5/view0": ArrayName("attention", "cls", 5, 0),
    "attention/cls/view0": ArrayName("attention", "cls", None, 0),
    "attention/cls/block5": ArrayName("attention", "cls", 5),
    "block1": ArrayName("block1"),
    "patch/view0/block5": ArrayName("patch", "view0", 5),
    "patch/block05/view-1": ArrayName("patch", "block05/view-1"),
    "patch/block٣": ArrayName("patch", "block٣"),
}


@pytest.mark.parametrize("name", NAMES)
def test_parts(name):
    assert ArrayName.parse(name) == NAMES[name]
    assert kind_of(name) == NAMES[name].kind


PART = st.sampled_from(["patch", "cls", "block0", "block12", "block012", "view0", "view7", "a-scale", "view1-scale"])


@given(st.lists(PART, min_size=1, max_size=5).map("/".join))
def test_any_name_is_its_parts(name):
    assert str(ArrayName.parse(name)) == name
