"""How fast features are written and read where they would be."""

import tempfile
import time
from pathlib import Path

import numpy as np

from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter, Loader

SHAPE, SHARD_ROWS = (196, 768), 128  # of a ViT-B's patch tokens
N_SHARDS = 2
NAME = "patch/block0/view0"


def measure_disk(folder: Path) -> tuple[float, float]:
    """Bytes per second that the store writes into a folder, and reads from it past the page cache; 77 MB, removed again."""
    n = N_SHARDS * SHARD_ROWS
    layouts = [
        ArrayLayout("images/label", (n,), "int64", ("image",), SHARD_ROWS),
        ArrayLayout("images/valid", (n,), "uint8", ("image",), SHARD_ROWS),
        ArrayLayout(NAME, (n, *SHAPE), "float16", ("image", "patch", "channel"), SHARD_ROWS, codec="float16"),
    ]
    rows = np.random.default_rng(0).random((SHARD_ROWS, *SHAPE), np.float32).astype(np.float16)
    flags: dict[str, np.ndarray] = {
        "images/label": np.zeros(SHARD_ROWS, np.int64),
        "images/valid": np.ones(SHARD_ROWS, np.uint8),
    }
    nbytes = N_SHARDS * rows.nbytes
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=folder) as temporary:
        out = Path(temporary) / "sample"
        began = time.perf_counter()
        with FeatureWriter(out, FeatureSpec("w", "{}", {}, "data", n, (0,)), layouts) as writer:
            for unit in range(N_SHARDS):
                writer.write_unit(unit, {**flags, NAME: rows})
            writer.finish({"encoder": "sample", "norm_eps": None, "classes": None, "problems": []})
        written_s = time.perf_counter() - began
        store = FeatureStore.open(out)
        loader = Loader({"patch": store.array(NAME)}, store.labels, batch_size=32, dtype=None, placement="stream", direct=True)
        seconds = []
        for epoch in range(2):
            began = time.perf_counter()
            for _ in loader.epoch(epoch):
                pass
            seconds.append(time.perf_counter() - began)
    return nbytes / written_s, nbytes / min(seconds)
