"""Index arithmetic and bytes of a shard, against closed forms and against zarr."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zarr

from store import ArrayLayout
from store.layout import CHUNK_ROWS, SHARD_ROWS


def _layout(n: int, shard_rows: int = 64, dtype: str = "float32") -> ArrayLayout:
    return ArrayLayout("patch/block5/view0", (n, 2, 3), dtype, ("image", "patch", "channel"), shard_rows)


@pytest.mark.parametrize(
    ("n", "n_shards", "last_rows", "last_chunks"),
    [(1, 1, (0, 1), 1), (32, 1, (0, 32), 1), (33, 1, (0, 33), 2), (64, 1, (0, 64), 2), (65, 2, (64, 65), 1)],
)
def test_rows_and_chunks(n: int, n_shards: int, last_rows: tuple[int, int], last_chunks: int) -> None:
    layout = _layout(n)
    assert layout.n_shards == n_shards
    assert layout.rows(n_shards - 1) == last_rows
    assert layout.n_chunks(n_shards - 1) == last_chunks


def test_defaults() -> None:
    layout = ArrayLayout("images/label", (5000,), "int64", ("image",))
    assert (layout.shard_rows, layout.chunk_rows, layout.n_shards) == (SHARD_ROWS, CHUNK_ROWS, 5)


def test_file_names() -> None:
    assert _layout(65).file(1) == "patch/block5/view0/c/1/0/0"
    assert ArrayLayout("images/label", (5,), "int64", ("image",)).file(0) == "images/label/c/0"


def test_shard_bytes() -> None:
    """Rows, zeros up to a whole chunk, an index entry for each of the four chunks of 24-byte rows, CRC-32C."""
    layout = _layout(3 + 128, shard_rows=128)
    rows = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    data = layout.encode(1, rows)
    assert data[:72] == rows.astype("<f4").tobytes()
    assert data[72 : 32 * 24] == bytes(32 * 24 - 72)
    index = data[32 * 24 :]
    absent = 2**64 - 1
    assert np.frombuffer(index[:-4], "<u8").tolist() == [0, 32 * 24, *[absent] * 6]
    assert int.from_bytes(index[-4:], "little") == google_crc32c.value(index[:-4])
    assert len(data) == layout.nbytes(1) == 32 * 24 + 4 * 16 + 4


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "uint8"])
@pytest.mark.parametrize("n", [1, 64, 75])
def test_zarr_writes_the_same_bytes(tmp_path: Path, dtype: str, n: int) -> None:
    layout = _layout(n, dtype=dtype)
    rows = np.arange(n * 6).astype(dtype).reshape(n, 2, 3) + 1
    rows[32:64] = 0  # an empty chunk, which Zarr leaves out by default
    group = zarr.open_group(tmp_path / "z", mode="w", zarr_format=3)
    group.create_array(**layout.zarr_arguments())[:] = rows
    for shard in range(layout.n_shards):
        assert (tmp_path / "z" / layout.file(shard)).read_bytes() == layout.encode(shard, rows[slice(*layout.rows(shard))])


def test_layout_of_its_own_metadata(tmp_path: Path) -> None:
    layout = _layout(75, dtype="uint8")
    group = zarr.open_group(tmp_path / "z", mode="w", zarr_format=3)
    array = group.create_array(**layout.zarr_arguments())
    assert ArrayLayout.from_zarr(layout.name, array.metadata.to_dict()) == layout
