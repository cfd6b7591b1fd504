"""Index arithmetic and bytes of a shard, against closed forms and against zarr."""

import json
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import xxhash

from store import ArrayLayout
from store.layout import CHUNK_ROWS, shard_rows_of
from tests.store.conftest import shard_bytes, zarr_twin


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


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 50, 64])
def test_digests_are_of_rows_and_padding_together(n: int) -> None:
    """As if the padded block were cut into pieces, wherever the padding begins."""
    layout = ArrayLayout("patch/block5/view0", (n, 8200), "float32", ("image", "channel"), 64)
    rows = np.random.default_rng(0).normal(size=layout.shape).astype("float32")
    data, padding = layout.encode(0, rows)
    whole, step = bytes(data) + bytes(padding), 2 * 8200 * 4
    assert layout.checked_rows == 2
    digests = [xxhash.xxh3_128_digest(whole[start : start + step]) for start in range(0, len(whole), step)]
    assert layout.tail(0, data, padding) == b"".join(digests) + layout.index(0)
    assert layout.n_digests(0) == len(digests)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "uint8"])
@pytest.mark.parametrize("n", [1, 64, 75])
def test_zarr_writes_the_same_chunks_and_index(tmp_path: Path, dtype: str, n: int) -> None:
    """A shard is what Zarr writes, with the digests between its chunks and its index."""
    layout = _layout(n, dtype=dtype)
    rows = np.arange(n * 6).astype(dtype).reshape(n, 2, 3) + 1
    rows[32:64] = 0  # an empty chunk, which Zarr leaves out by default
    zarr_twin(tmp_path / "z", layout)[:] = rows
    for shard in range(layout.n_shards):
        ours = shard_bytes(layout, shard, rows[slice(*layout.rows(shard))])
        data, digests = layout.data_nbytes(shard), 16 * layout.n_digests(shard)
        assert (tmp_path / "z" / layout.file(shard)).read_bytes() == ours[:data] + ours[data + digests :]


def test_layout_of_its_own_metadata(tmp_path: Path) -> None:
    layout = _layout(75, dtype="uint8")
    assert ArrayLayout.from_zarr(layout.name, dict(zarr_twin(tmp_path / "z", layout).metadata.to_dict())) == layout
    for codec in (None, "int4"):
        written = replace(layout, codec=codec)
        assert ArrayLayout.from_zarr(layout.name, json.loads(written.to_zarr({"shards": []}))) == written
