"""What the store's benchmarks read: tokens of a real ViT, in the shape of a ViT-B's, as large as asked.

Tokens are one array of float16, or two, int8 and their scales, as the codec of that name stores them. Every peer gets these
arrays, by the suffixes of the codec's parts, in the form that suits it best.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter
from store.codecs import get_codec

ROOT = Path(__file__).parents[1]
SHAPE = (196, 768)
ROW_NBYTES = 2 * SHAPE[0] * SHAPE[1]
ID_NBYTES = 8
NAME = "patch/block11/view0"
TOKENS = "tokens"  # name of the array, ahead of the suffix of a part, in forms other than ours
Rows = NDArray[np.float16]
Parts = Mapping[str, NDArray]


def tokens() -> Rows:
    """[n, 196, 768] float16: patch tokens of all blocks of the quickstart's MAE for its test images, regrouped."""
    from extract.datasets import open_images
    from extract.encoders import load_encoder

    encoder = load_encoder("quickstart-mae")
    images = open_images(str(ROOT / "quickstart/data/cifar10/test"))
    blocks = range(encoder.n_blocks)
    parts = []
    with torch.inference_mode():
        for start in range(0, len(images), 125):
            batch = torch.stack([encoder.transform(images.image(row)) for row in range(start, min(start + 125, len(images)))])
            encoded = encoder(batch, tuple(blocks))
            parts.append(torch.cat([encoded.patch[block].half().flatten() for block in blocks]))
    flat = torch.cat(parts).numpy()
    n = len(flat) // (SHAPE[0] * SHAPE[1])
    return flat[: n * SHAPE[0] * SHAPE[1]].reshape(n, *SHAPE)


def rows_for(nbytes: int) -> int:
    """Rows of a set of about this size, whole chunks of 32."""
    return max(64, round(nbytes / ROW_NBYTES / 32) * 32)


def make_spec(n: int, dtype: str = "float16") -> FeatureSpec:
    return FeatureSpec("w", "{}", {"input_size": [3, 224, 224]}, "data", n, (11,), dtype=dtype)


def parts_of(tokens: Rows, codec: str) -> Parts:
    """Tokens as a codec stores them, by the suffix of the array's name."""
    return {suffix: part.numpy() for suffix, part in get_codec(codec).encode(torch.from_numpy(tokens).float()).items()}


def make_layouts(n: int, shard_rows: int, codec: str = "float16") -> list[ArrayLayout]:
    axes = ("image", "patch", "channel")
    return [
        ArrayLayout("images/id", (n, ID_NBYTES), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout("images/label", (n,), "int64", ("image",), shard_rows),
        ArrayLayout("images/valid", (n,), "uint8", ("image",), shard_rows),
        *(
            ArrayLayout(NAME + suffix, shape, dtype, axes[: len(shape)], shard_rows, codec=None if suffix else codec)
            for suffix, (shape, dtype) in get_codec(codec).parts((n, *SHAPE)).items()
        ),
    ]


def row_blocks(source: NDArray, n: int, step: int) -> Iterator[tuple[int, NDArray]]:
    """The set's rows, `step` at a time: `source` repeated, without a copy if it is one step long."""
    for start in range(0, n, step):
        if len(source) == step:
            yield start, source[: n - start]
            continue
        yield start, source.take(range(start, min(start + step, n)), axis=0, mode="wrap")


def part_blocks(parts: Parts, n: int, step: int) -> Iterator[tuple[int, dict[str, NDArray]]]:
    for blocks in zip(*(row_blocks(part, n, step) for part in parts.values()), strict=True):
        yield blocks[0][0], dict(zip(parts, (rows for _, rows in blocks), strict=True))


def write_store(out: Path, source: Rows | Parts, n: int, shard_rows: int, n_classes: int | None = None) -> FeatureStore:
    """Ours, which all Zarr readers share: `source`, repeated; labels count from 0, up to the number of classes, if any."""
    shutil.rmtree(out, ignore_errors=True)
    parts = source if isinstance(source, Mapping) else {"": source}
    codec = parts[""].dtype.name
    with FeatureWriter(out, make_spec(n, codec), make_layouts(n, shard_rows, codec)) as writer:
        for unit, (start, blocks) in enumerate(part_blocks(parts, n, shard_rows)):
            numbers = np.arange(start, start + len(blocks[""]))
            ids = np.array([f"{row:0{ID_NBYTES}}" for row in numbers], f"S{ID_NBYTES}").view(np.uint8)
            annotations: dict[str, NDArray] = {
                "images/id": ids.reshape(len(numbers), ID_NBYTES),
                "images/label": numbers % (n_classes or n),
                "images/valid": np.ones(len(numbers), np.uint8),
            }
            writer.write_unit(unit, {**annotations, **{NAME + suffix: block for suffix, block in blocks.items()}})
        writer.finish({"encoder": "quickstart-mae", "norm_eps": None, "classes": None, "problems": []})
    return FeatureStore.open(out)


def write_h5(out: Path, parts: Parts, n: int, shard_rows: int) -> None:
    """Uncompressed data sets: one has a chunk for each row, the other is contiguous."""
    import h5py

    out.mkdir(parents=True)
    for layout, chunk_rows in (("rows", 1), ("contiguous", None)):
        with h5py.File(out / f"{layout}.h5", "w") as file:
            for suffix, part in parts.items():
                chunks = chunk_rows and (chunk_rows, *part.shape[1:])
                data = file.create_dataset(TOKENS + suffix, (n, *part.shape[1:]), part.dtype, chunks=chunks)
                for start, rows in row_blocks(part, n, shard_rows):
                    data[start : start + len(rows)] = rows


def write_npy(out: Path, parts: Parts, n: int, shard_rows: int) -> None:
    out.mkdir(parents=True)
    for suffix, part in parts.items():
        file = out / f"{TOKENS}{suffix}.npy"
        data = np.lib.format.open_memmap(file, "w+", part.dtype, (n, *part.shape[1:]))
        for start, rows in row_blocks(part, n, shard_rows):
            data[start : start + len(rows)] = rows


def write_lance(out: Path, parts: Parts, n: int, shard_rows: int) -> None:
    """A column of lists of fixed size for each part, uncompressed."""
    import lance
    import pyarrow as pa

    plain = {"lance-encoding:compression": "none"}
    types = {TOKENS + suffix: pa.list_(pa.from_numpy_dtype(part.dtype), part[0].size) for suffix, part in parts.items()}
    schema = pa.schema([pa.field(name, kind, nullable=False, metadata=plain) for name, kind in types.items()])

    def batches() -> Iterator[pa.RecordBatch]:
        for _, blocks in part_blocks(parts, n, shard_rows):
            flat = [pa.array(rows.reshape(-1)) for rows in blocks.values()]
            lists = (pa.FixedSizeListArray.from_arrays(v, type=kind) for v, kind in zip(flat, types.values(), strict=True))
            yield pa.record_batch(list(lists), schema=schema)

    lance.write_dataset(batches(), out, schema=schema)


def write_tars(out: Path, parts: Parts, n: int, shard_rows: int) -> None:
    """WebDataset tars, a .npy for each row and part."""
    import webdataset as wds

    out.mkdir(parents=True)
    for start, blocks in part_blocks(parts, n, shard_rows):
        with wds.TarWriter(str(out / f"{start // shard_rows:04d}.tar")) as tar:
            for i in range(len(blocks[""])):
                members = {f"{TOKENS}{suffix}.npy": rows[i] for suffix, rows in blocks.items()}
                tar.write({"__key__": f"{start + i:08d}", **members})


FORMS: dict[str, Callable[[Path, Parts, int, int], object]] = {
    "store": write_store,
    "h5": write_h5,
    "npy": write_npy,
    "lance": write_lance,
    "tars": write_tars,
}
