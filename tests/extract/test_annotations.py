"""Several labels and boxes an image: from the data set into the store."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from extract.datasets import Box, ImageSet, Sample, open_images
from store import FeatureStore, Loader, StoreError, join, verify
from tests.extract.extracting import extract
from tests.extract.pictures import picture, write_example, write_file, write_pictures, write_text
from tests.extract.tiny import tiny_encoder

N = 35
LINES = ["1 2 3.5 4;0 0 9 9", "", "5 6 7 8"]


def table(folder: Path, labels: Sequence[str], n: int = N, column: str = "labels") -> ImageSet:
    """Images whose labels and boxes come in turn."""
    write_pictures(folder, *(f"{i}.png" for i in range(n)), form="png")
    lines = [f"i{i},{i}.png,{labels[i % len(labels)]},{LINES[i % 3]}" for i in range(n)]
    write_text(folder / "images.csv", f"id,path,{column},boxes", *lines)
    return open_images(str(folder / "images.csv"), classes=write_text(folder / "names.txt", "ape", "bee", "cat"))


def run(images: ImageSet, out: Path, on_error: str = "raise") -> FeatureStore:
    return extract(tiny_encoder(), images, out, shard_rows=32, batch_size=8, workers=2, on_error=on_error)


def test_several_labels(tmp_path):
    store = run(table(tmp_path / "d", ["ape;cat", "", "bee"]), tmp_path / "f")
    assert (store.multilabel, store.labels.dtype, store.n_classes) == (True, np.uint8, 3)
    assert store.labels[:4].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert store.labels.sum(0).tolist() == [12, 11, 12]
    assert store.labelled.all(), "no label is an answer"
    assert "images/label" not in store.arrays
    assert not [problem for _, _, problem in verify(store.path) if problem]
    batch = next(Loader({"cls": store.tokens("cls")}, store.labels, batch_size=8).epoch())
    assert batch["label"].tolist() == store.labels[batch["row"]].tolist()


def test_boxes(tmp_path):
    store = run(table(tmp_path / "d", ["0", "1", "2"], column="label"), tmp_path / "f")
    assert (store.multilabel, store.labels[:3].tolist()) == (False, [0, 1, 2])
    assert store.array("images/boxes").shape == (N, 2, 4)
    two = [[1, 2, 3.5, 4], [0, 0, 9, 9]]
    for row, corners, labels in ((0, two, [0, 0]), (33, two, [0, 0]), (1, [], []), (2, [[5, 6, 7, 8]], [2])):
        assert [part.tolist() for part in store.boxes(row)] == [corners, labels]
    assert (store.array("images/boxes").rows([1]) == -1).all()
    assert not [problem for _, _, problem in verify(store.path) if problem]


def test_labels_and_boxes_of_an_image_that_is_missing_are_kept(tmp_path):
    images = table(tmp_path / "d", ["ape;cat", "", "bee"])
    (tmp_path / "d" / "3.png").unlink()
    images = open_images(str(tmp_path / "d" / "images.csv"))
    store = run(images, tmp_path / "f", on_error="record")
    assert np.flatnonzero(~store.valid).tolist() == [3]
    assert np.flatnonzero(~store.labelled).tolist() == [3]
    assert store.labels[3].tolist() == [1, 0, 1]
    assert len(store.boxes(3)[0]) == 2
    assert store.attributes["invalid"] == [{"row": 3, "id": "i3", "problem": "'i3' in 3.png: is in the list, but not there"}]


def test_problems_of_a_published_set_are_recorded_without_paths(tmp_path):
    source, root = write_example(tmp_path / "d", "cub"), tmp_path / "d"
    write_file(root / "CUB_200_2011" / "images" / "extra.jpg", picture(0, "jpeg"))
    (root / "CUB_200_2011" / "images" / "002.Laysan_Albatross" / "c.jpg").unlink()
    store = run(open_images(source, split="train"), tmp_path / "f", on_error="record")
    assert store.attributes["problems"][0].startswith("1 images in images are in no list, e.g. extra.jpg")
    assert len(store.attributes["problems"]) == 2
    assert str(tmp_path) not in (store.path / "zarr.json").read_text()


def test_ids_bytes_labels_and_boxes_enter_the_digest(tmp_path):
    box, size = Box(1, 2, 3, 4, 0), len(picture(0))
    file = write_file(tmp_path / "x.png", picture(0) + bytes(size))

    def digest(
        labels: Sequence[int], *boxes: Box, id_: str = "x", at: int = 0, classes: str = "ab", multilabel: bool = False
    ) -> str:
        sample = Sample(id_, tuple(labels), file, at, size, None, boxes)
        return ImageSet("s", [sample], list(classes), multilabel=multilabel).digest

    several = [digest(labels, multilabel=True) for labels in ([0], [0, 1], [])]
    boxed = [digest([0], *boxes) for boxes in ([box], [box._replace(x1=3.5)], [box._replace(label=1)], [box, box])]
    digests = [
        digest([0]),
        digest([1]),
        digest([0], id_="y"),
        digest([0], at=1),
        digest([0], classes="abc", multilabel=True),
        *several,
        *boxed,
    ]
    assert len({*digests}) == len(digests)
    assert digest([1, 0], multilabel=True) == several[1], "the labels of an image have no order"


def test_join_of_multilabel_sets(tmp_path):
    given = {"one": ["ape;cat", "", "bee"], "same": ["ape;cat", "", "bee"], "other": ["ape;cat", "", "cat"], "single": ["ape"]}
    one, same, other, single = (
        run(
            table(tmp_path / name, labels, 33 if name == "same" else N, "label" if name == "single" else "labels"),
            tmp_path / f"{name}.set",
        )
        for name, labels in given.items()
    )
    assert join(one, same).tolist() == [*range(33), -1, -1]
    with pytest.raises(StoreError, match=r"image 'i2' has label \[0 1 0\] in .* but \[0 0 1\] in "):
        join(one, other)
    with pytest.raises(StoreError, match="have different classes; are these the same images"):
        join(one, single)
