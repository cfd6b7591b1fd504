"""A set to export: any bit pattern, ids that no file name can be trusted with, several codecs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import ArrayLayout, FeatureStore
from store.codecs import CODECS
from store.exchange import EXCHANGES, import_from
from store.exchange.exchange import chosen_arrays
from tests.store.conftest import values, write

N, SHARD = 70, 32  # three shards, the last one short
PATCH, BYTES = "patch/block5/view0", "images/id"
IDS = ["a/b.c", "é", "../x", "日 \n", "__x__"]  # what may stand in an id


def layouts_of(codec: str = "float16") -> list[ArrayLayout]:
    layouts = [
        ArrayLayout("images/id", (N, 9), "uint8", ("image", "byte"), SHARD),
        ArrayLayout("images/label", (N,), "int64", ("image",), SHARD),
        ArrayLayout("images/valid", (N,), "uint8", ("image",), SHARD),
        ArrayLayout("statistics/cls_self/view0", (N, 6, 2), "float32", ("image", "block", "head"), SHARD, codec="float32"),
    ]
    for name, shape, axes in (
        (PATCH, (N, 3, 6), ("image", "patch", "channel")),
        ("cls/block5/view0", (N, 6), ("image", "channel")),
    ):
        for end, (stored, dtype) in CODECS[codec].parts(shape).items():
            layouts.append(ArrayLayout(name + end, stored, dtype, axes[: len(stored)], SHARD, codec=None if end else codec))
    return layouts


def write_set(path: Path, codec: str = "float16") -> Path:
    layouts = layouts_of(codec)
    contents = values(layouts)  # any bit pattern, NaN of all kinds among them
    ids = b"".join(f"{IDS[row % 5]}{row}".encode().ljust(9, b"\0") for row in range(N))
    contents[BYTES] = np.frombuffer(ids, np.uint8).reshape(N, 9)
    write(path, layouts, contents, dtype=codec)
    return path


def export(store: FeatureStore, form: str, folder: Path, asked: list[str] | None = None) -> Path:
    EXCHANGES[form].export(store, folder / "exported", chosen_arrays(store, asked))
    return folder / "exported"


def import_as(form: str, source: Path, out: Path) -> FeatureStore:
    with EXCHANGES[form].read(source) as opened:
        return import_from(opened, out)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return FeatureStore.open(write_set(tmp_path_factory.mktemp("sets") / "float16"))


@pytest.fixture(scope="module")
def ready(store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The set in each form, not to be changed."""
    made: dict[str, Path] = {}
    return lambda form: made.setdefault(form, made.get(form) or export(store, form, tmp_path_factory.mktemp(form)))
