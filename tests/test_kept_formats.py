"""Files of the format versions that docs/versions.md promises to read, as they were written once."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

from probe.saved import load_probe
from store import FeatureStore, verify
from store.moving.receipt import Receipt

KEPT = Path(__file__).parent / "kept/feature-set-2-head-2.zip"
KEY = "cc65254dbd6659adf6cfd3e891e68b38"
DIGESTS = {  # XXH3-64 of all rows
    "images/id": "c45a641216d1be78",
    "images/digest": "461a57370b266da8",
    "images/label": "e04c61c0a9e18c43",
    "images/size": "b0a98d594e56dd69",
    "images/valid": "9c10e14d6e2bf392",
    "patch/block3/view0": "c65f3e48a26c6f89",
    "patch/block5/view0": "b0adbc738bcaf281",
    "cls/block5/view0": "983fa529e6c90a71",
    "registers/block5/view0": "723e00eeee98e278",
    "average/block5/view0": "6228e9ec7a2048f7",
    "pooled/view0": "5dd0b10601c7af08",
    "statistics/cls_self/view0": "d014dac287c55083",
    "attention/cls/block5/view0": "bc223991443c090e",
    "attention/centre/block5/view0": "b5d2daa007d09523",
    "norm/weight": "ae83bb41aa31469c",
    "norm/bias": "1f3b2a2c85c20009",
}
LOGITS = [-0.017277173697948456, 0.002441219286993146, -0.005594510585069656]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with zipfile.ZipFile(KEPT) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_a_feature_set_of_format_2(kept: Path) -> None:
    store = FeatureStore.open(kept / "one")
    assert store.spec.key == KEY
    assert {
        name: xxhash.xxh3_64_hexdigest(np.ascontiguousarray(a.all()).tobytes()) for name, a in store.arrays.items()
    } == DIGESTS
    assert {problem for *_, problem in verify(kept / "one")} == {None}


def test_a_receipt_of_format_2(kept: Path) -> None:
    Receipt.read(kept / "one.json").check(FeatureStore.open(kept / "one"), whole=True)


def test_a_head_of_format_2(kept: Path) -> None:
    logits, weights = load_probe(kept / "head")({"patch": torch.arange(15.0).reshape(1, 3, 5) / 15})
    torch.testing.assert_close(logits, torch.tensor([LOGITS]))
    assert weights.shape == (1, 3)
