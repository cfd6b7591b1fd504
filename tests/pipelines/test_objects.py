"""Pictures of several photographs: their label maps and objects are what they show."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from extract.datasets import open_images
from pipelines.quickstart import objects
from store import BeyondClsError
from store.truths import rle
from tests.machines.project import ROOT

PHOTOS = str(ROOT / "quickstart/data/cifar10")


def composed(out: Path, train: int = 6, test: int = 4, seed: int = 0, **options: int) -> Path:
    objects.main(PHOTOS, out, train, test, seed, **{"canvas": 64, "smallest": 20, "largest": 40, **options})
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return composed(tmp_path_factory.mktemp("objects"))


def test_masks_and_maps_show_the_visible_part_of_each_photograph(folder: Path) -> None:
    content = json.loads((folder / "instances/train.json").read_text())
    classes = (folder / "label-classes.txt").read_text().split()
    assert classes[0] == "background"
    counts = []
    for image in content["images"]:
        label_map = np.asarray(Image.open(folder / "labels/train" / image["file_name"]))
        drawn = np.zeros_like(label_map)
        found = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        counts.append(len(found))
        for one in found:
            mask = rle.decode(one["segmentation"]["counts"].encode(), (64, 64)).astype(bool)
            assert not drawn[mask].any(), "what is covered belongs to one photograph alone"
            drawn[mask] = one["category_id"]
            x, y, width, height = one["bbox"]
            rows, columns = np.nonzero(mask)
            assert (x, y, x + width, y + height) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert one["area"] == mask.sum() >= objects.VISIBLE * 20**2
            assert classes[one["category_id"]] == content["categories"][one["category_id"] - 1]["name"]
        assert (drawn == label_map).all()
    assert set(counts) <= {1, 2, 3}
    assert len(set(counts)) > 1


def test_later_photographs_cover_earlier_ones() -> None:
    photos = [Image.new("RGB", (32, 32), colour) for colour in ("red", "lime")]
    picture = objects.compose(photos, [3, 8], 48, (34, 36), np.random.default_rng(0))
    colours = {1: (255, 0, 0), 2: (0, 255, 0)}
    for number, colour in colours.items():
        assert (picture.pixels[picture.numbers == number] == colour).all()
    assert (picture.numbers == 2).sum() >= 34**2 > (picture.numbers == 1).sum(), "the second one is whole"
    assert set(np.unique(picture.label_map)) == {0, 4, 9}


def test_it_is_a_data_set_with_both_kinds_of_truths(folder: Path) -> None:
    images = {split: open_images(str(folder), split=split) for split in ("train", "test")}
    assert {split: len(opened) for split, opened in images.items()} == {"train": 6, "test": 4}
    for opened in images.values():
        assert set(opened.truths) == {"segmentation", "instances"}
        assert opened.all_problems() == []
        assert list(opened.truths["segmentation"].classes) == ["background", *opened.truths["instances"].classes]
        assert opened.truth_columns("instances").arrays["counts"].size


def test_the_same_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """And training and test pictures have neither photographs, which come from two splits, nor places in common."""
    composed(tmp_path / "same"), composed(tmp_path / "other", seed=1)
    files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    assert len(files) == 2 * 10 + 3
    assert all((folder / file).read_bytes() == (tmp_path / "same" / file).read_bytes() for file in files)
    train = Path("instances/train.json")
    assert (folder / train).read_bytes() != (tmp_path / "other" / train).read_bytes()
    drawn = [np.asarray(Image.open(folder / f"labels/{split}/00001.png")) > 0 for split in ("train", "test")]
    assert (drawn[0] != drawn[1]).any()


def test_what_cannot_be_composed(tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=r"400 pictures of up to 3 photographs need 1,200, there are 1,000; ask for fewer"):
        composed(tmp_path, test=400)
    with pytest.raises(BeyondClsError, match=r"photographs of 20 to 50 pixels on 64, expected smallest <= largest <= 48"):
        composed(tmp_path, largest=50)
