"""What the store's benchmarks read: tokens of a real ViT, in the shape of a ViT-B's, as large as asked."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter

ROOT = Path(__file__).parents[1]
SHAPE = (196, 768)
ROW_NBYTES = 2 * SHAPE[0] * SHAPE[1]
ID_NBYTES = 8
NAME = "patch/block11/view0"
Rows = NDArray[np.float16]


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


def make_spec(n: int) -> FeatureSpec:
    return FeatureSpec("w", "{}", {"input_size": [3, 224, 224]}, "data", n, (11,))


def make_layouts(n: int, shard_rows: int) -> list[ArrayLayout]:
    return [
        ArrayLayout("images/id", (n, ID_NBYTES), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout("images/label", (n,), "int64", ("image",), shard_rows),
        ArrayLayout("images/valid", (n,), "uint8", ("image",), shard_rows),
        ArrayLayout(NAME, (n, *SHAPE), "float16", ("image", "patch", "channel"), shard_rows, codec="float16"),
    ]


def row_blocks(source: Rows, n: int, step: int) -> Iterator[tuple[int, Rows]]:
    """The set's rows, `step` at a time: `source` repeated, without a copy if it is one step long."""
    for start in range(0, n, step):
        if len(source) == step:
            yield start, source[: n - start]
            continue
        yield start, source.take(range(start, min(start + step, n)), axis=0, mode="wrap")


def write_store(out: Path, source: Rows, n: int, shard_rows: int, n_classes: int | None = None) -> FeatureStore:
    """A set of `source`, repeated; labels count from 0, up to the number of classes, if there is one."""
    shutil.rmtree(out, ignore_errors=True)
    layouts = make_layouts(n, shard_rows)
    with FeatureWriter(out, make_spec(n), layouts) as writer:
        for unit, (start, rows) in enumerate(row_blocks(source, n, shard_rows)):
            labels = np.arange(start, start + len(rows)) % (n_classes or n)
            names = np.array([f"{row:0{ID_NBYTES}}" for row in range(start, start + len(rows))], f"S{ID_NBYTES}")
            ids, valid = names.view(np.uint8).reshape(len(rows), ID_NBYTES), np.ones(len(rows), np.uint8)
            writer.write_unit(unit, {"images/id": ids, "images/label": labels, "images/valid": valid, NAME: rows})
        writer.finish({"encoder": "quickstart-mae", "norm_eps": None, "classes": None, "problems": []})
    return FeatureStore.open(out)


def write_h5(out: Path, source: Rows, n: int) -> None:
    """One uncompressed data set, a chunk for each row: h5py's fastest layout for shuffled rows."""
    import h5py

    with h5py.File(out, "w") as file:
        data = file.create_dataset("features", (n, *SHAPE), "float16", chunks=(1, *SHAPE))
        for start, rows in row_blocks(source, n, 256):
            data[start : start + len(rows)] = rows


def write_tars(out: Path, source: Rows, n: int, per_tar: int) -> None:
    """WebDataset tars, a .npy for each row."""
    import webdataset as wds

    out.mkdir(parents=True, exist_ok=True)
    for start, rows in row_blocks(source, n, per_tar):
        with wds.TarWriter(str(out / f"{start // per_tar:04d}.tar")) as tar:
            for i, row in enumerate(rows):
                tar.write({"__key__": f"{start + i:08d}", "npy": row})
