"""The composed set: its boxes hold the photographs, and its bytes depend on nothing but photographs and seed."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from extract.datasets import open_images
from pipelines.quickstart import compose
from store import BeyondClsError
from tests.folders import files

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = str(ROOT / "quickstart/data/cifar10/test")


def composed(out: Path, n: int = 12, seed: int = 0, **options: int) -> list[dict[str, str]]:
    given = {"canvas": 64, "smallest": 24, "largest": 40, **options}
    compose.main(PHOTOS, out, n, seed, **given)
    with (out / "images.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def corners(row: dict[str, str]) -> list[int]:
    return [int(row[name]) for name in ("x0", "y0", "x1", "y1")]


def test_boxes_hold_the_photographs(tmp_path):
    photos = open_images(PHOTOS)
    by_id = {sample.id: row for row, sample in enumerate(photos.samples)}
    sides = set()
    for row in composed(tmp_path):
        picture, number = Image.open(tmp_path / row["path"]), by_id[row["id"]]
        x0, y0, x1, y1 = box = corners(row)
        assert picture.size == (64, 64)
        assert 0 <= min(box) < max(box) <= 64
        assert 24 <= x1 - x0 == y1 - y0 <= 40
        sides.add(x1 - x0)
        photo = photos.image(number).resize((x1 - x0, y1 - y0), Image.Resampling.BICUBIC)
        assert np.array_equal(np.asarray(picture.crop(box)), np.asarray(photo))
        assert row["label"] == photos.classes[photos.samples[number].label]
    assert len(sides) > 3


def test_the_same_seed_gives_the_same_bytes_and_fewer_images_are_the_first_of_more(tmp_path):
    rows = composed(tmp_path / "a")
    assert rows == composed(tmp_path / "b") != composed(tmp_path / "c", seed=1)
    assert len(files(tmp_path / "a")) == 13
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert composed(tmp_path / "few", 5) == rows[:5]


def test_what_cannot_be_composed(tmp_path):
    with pytest.raises(BeyondClsError, match=r"has 1,000 photographs, 1,001 were asked for; give a lower --n-images"):
        composed(tmp_path, n=1001)
    with pytest.raises(BeyondClsError, match=r"24 to 80 pixels on 64, expected smallest <= largest <= canvas"):
        composed(tmp_path, largest=80)
