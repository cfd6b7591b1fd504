"""Labels and boxes from the data set into the store; images under other names, labels, boxes or maps keep their features."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from extract.datasets import Box, ImageSet, Sample, open_images
from extract.layouts import annotations_of, stale_annotations
from extract.requests import Request
from extract.run import confirm, rows_in
from extract.sample import SampleCheck
from extract.writing import Settings
from store import FeatureStore, Loader, StoreError, join, verify
from tests.extract.extracting import extract
from tests.extract.pictures import picture, samples, write_file, write_tar, write_text
from tests.extract.tiny import Counting, tiny_encoder
from tests.folders import files

N = 36  # 32 + 4 rows
GIVEN: dict[str, Any] = {"shard_rows": 32, "batch_size": 8, "workers": 2, "statistics": ("cls_self",), "maps": False}
C = range(2, N, 3)  # images of the last class
Edit = Callable[[Path], object]


def folder(root: Path) -> Path:
    for i in range(N):
        write_file(root / "abc"[i % 3] / f"{i:02d}.png", picture(min(i, N - 3)))
    return root


def table(columns: str, line: Callable[[int], str]) -> Callable[[Path], Path]:

    def write(root: Path) -> Path:
        for i in range(N):
            write_file(root / f"{i:02d}.png", picture(i))
        write_text(root / "names.txt", "ape", "bee", "cat")
        return write_text(root / "images.csv", columns, *(f"i{i},{i:02d}.png,{line(i)}" for i in range(N)))

    return write


def tars(root: Path) -> Path:
    write_tar(root / "0.tar", samples(20))
    write_tar(root / "1.tar", samples(N)[20:])
    return root


def maps(root: Path) -> Path:
    write_text(root / "label-classes.txt", "sky", "road")
    for i in range(N):
        write_file(root / f"images/train/{i:02d}.png", picture(i))
        (root / "labels/train").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.repeat(np.arange(40) < i, 36).reshape(40, 36).astype(np.uint8)).save(
            root / f"labels/train/{i:02d}.png"
        )
    return root


def move(old: str, new: str) -> Edit:
    def edit(root: Path) -> None:
        (root / new).parent.mkdir(exist_ok=True)
        (root / old).rename(root / new)

    return edit


def remove(*names: str) -> Edit:
    return lambda root: [(root / name).unlink() for name in names]


def line(old: str, new: str) -> Edit:

    def edit(root: Path) -> None:
        before = (root / "images.csv").read_text()
        assert before.count(f"{old}\n") == 1, old
        (root / "images.csv").write_text(before.replace(f"{old}\n", f"{new}\n"))

    return edit


LABELS = table("id,path,label", lambda i: str(i % 3))
SEVERAL = table("id,path,labels", lambda i: ["ape;cat", "", "bee"][i % 3])
BOXES = table("id,path,label,boxes", lambda i: f"{i % 3},1 2 3 {4 + i}")
EDITS: dict[str, tuple[Callable[[Path], Path], Edit]] = {
    "the first of its class now": (folder, move("c/35.png", "a/!.png")),
    "without the copies": (folder, remove("b/34.png", "c/35.png")),
    "a class merged into another": (folder, lambda root: [move(f"c/{i:02d}.png", f"b/{i:02d}.png")(root) for i in C]),
    "an id in a list": (LABELS, line("i4,04.png,1", "other,04.png,1")),
    "a longer id": (LABELS, line("i9,09.png,0", "an-id-that-is-longer-than-all-others,09.png,0")),
    "one of several labels": (SEVERAL, line("i3,03.png,ape;cat", "i3,03.png,ape")),
    "one box more": (BOXES, line("i4,04.png,1,1 2 3 8", "i4,04.png,1,1 2 3 8;0 0 5 5")),
    "a label in a tar": (tars, lambda root: write_tar(root / "0.tar", [{**one, "cls": 2} for one in samples(20)])),
    "a map and an image fewer": (maps, remove("labels/train/07.png", "images/train/07.png")),
}  # fmt: skip


def opened(source: Path) -> ImageSet:
    return open_images(str(source), split="train" if (source / "labels").exists() else None)


@pytest.mark.parametrize("name", EDITS)
def test_features_are_kept_and_all_else_is_as_it_is_now(name, tmp_path):
    """`update`, and another set of which it is the source."""
    write, edit = EDITS[name]
    source, encoder, checks = write(tmp_path / "d"), Counting("tiny", tiny_encoder().model, {}), list[SampleCheck]()
    before = extract(encoder, opened(source), tmp_path / "f", **GIVEN)
    edit(tmp_path / "d")
    images, encoder.seen = opened(source), 0
    ways: list[dict[str, Any]] = [{"out": tmp_path / "from", "source": before}, {"out": tmp_path / "f", "existing": "update"}]
    stores = [extract(encoder, images, **way, **GIVEN, checked=lambda _, check: checks.append(check)) for way in ways]
    assert encoder.seen <= 2 + sum(check.n_sampled for check in checks), "it ran for samples, and to see the shapes"
    fresh = extract(encoder, images, tmp_path / "fresh", **GIVEN)
    for store in stores:
        assert store.ids == [sample.id for sample in images.samples]
        assert stale_annotations(store, images) == []
        assert files(store.path) == files(fresh.path)


def test_equal_images_keep_a_row_each(tmp_path):
    """One that is not valid is nobody's, not even where its image is still in its place."""
    encoder, before = tiny_encoder(), opened(folder(tmp_path / "d"))
    store = extract(encoder, before, tmp_path / "f", **GIVEN)
    write_file(tmp_path / "d/a/!.png", picture(N + 1))  # all others move down by one
    shutil.copy(tmp_path / "d/a/33.png", tmp_path / "d/a/34.png")
    images = opened(tmp_path / "d")
    request = Request.resolve(encoder, images, shard_rows=32)
    equal = [store.ids.index(name) for name in ("a/33", "b/34", "c/35")]
    rows = dict(zip((sample.id for sample in images.samples), rows_in(store, request).tolist(), strict=True))
    four = [rows.pop(name) for name in ("a/33", "a/34", "b/34", "c/35")]
    assert sorted({*four}) == sorted(equal), "each row is used, one of them twice"
    assert rows.pop("a/!") == -1
    assert all(store.ids[row] == name for name, row in rows.items())
    store.valid[equal[1]] = False
    assert equal[1] not in rows_in(store, request)
    relabelled = ImageSet("d", [replace(sample, labels=(0,)) for sample in before.samples], before.classes)
    rows_now = rows_in(store, Request.resolve(encoder, relabelled, shard_rows=32)).tolist()
    assert rows_now == [-1 if row == equal[1] else row for row in range(N)]


def test_a_set_with_the_labels_of_before(tmp_path, monkeypatch):
    before = opened(folder(tmp_path / "d"))
    images = ImageSet(before.source, [replace(s, labels=(2,)) if s.id == "a/00" else s for s in before.samples], before.classes)
    encoder = tiny_encoder()
    with monkeypatch.context() as patch:
        patch.setattr("extract.writing.annotations_of", lambda _, *others: annotations_of(before, *others))
        stale = extract(encoder, images, tmp_path / "f", **GIVEN)
    fresh = extract(encoder, images, tmp_path / "fresh", **GIVEN)
    assert (stale.spec.key, stale.labels[0], fresh.labels[0]) == (fresh.spec.key, 0, 2)
    with pytest.raises(StoreError, match=r"holds other annotations \(images/label\) than .*/d has\. --update writes them anew"):
        extract(encoder, images, tmp_path / "f", **GIVEN)
    with pytest.raises(StoreError, match=r"holds other annotations .* has\. If the change is meant, remove that set"):
        confirm(Request.resolve(encoder, images, shard_rows=32), stale, Settings())
    notes = []
    extract(encoder, images, tmp_path / "f", **GIVEN, existing="update", warn=notes.append)
    assert len(notes) == 1
    assert files(tmp_path / "f") == files(fresh.path)


def described(folder: Path, *labels: str, column: str = "labels") -> ImageSet:
    """Images whose labels and boxes come in turn."""
    boxes = ("1 2 3.5 4;0 0 9 9", "", "5 6 7 8")
    return opened(table(f"id,path,{column},boxes", lambda i: f"{labels[i % len(labels)]},{boxes[i % 3]}")(folder))


def run(images: ImageSet, out: Path, **options: Any) -> FeatureStore:
    return extract(tiny_encoder(), images, out, **GIVEN, **options)


def test_several_labels(tmp_path):
    store = run(described(tmp_path / "d", "ape;cat", "", "bee"), tmp_path / "f")
    assert (store.multilabel, store.labels.dtype, store.n_classes) == (True, np.uint8, 3)
    assert store.labels[:4].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert store.labels.sum(0).tolist() == [12, 12, 12]
    assert store.labelled.all(), "no label is an answer"
    assert "images/label" not in store.arrays
    assert not [problem for _, _, problem in verify(store.path) if problem]
    batch = next(Loader({"cls": store.tokens("cls")}, store.labels, batch_size=8).epoch())
    assert batch["label"].tolist() == store.labels[batch["row"]].tolist()


def test_boxes(tmp_path):
    """Also of an image that is missing."""
    described(tmp_path / "d", "0", "1", "2", column="label")
    (tmp_path / "d/00.png").unlink()
    store = run(opened(tmp_path / "d/images.csv"), tmp_path / "f", on_error="record")
    assert store.attributes["invalid"] == [{"row": 0, "id": "i0", "problem": "'i0' in 00.png: is in the list, but not there"}]
    assert (store.multilabel, store.labels[:3].tolist()) == (False, [0, 1, 2])
    assert store.array("images/boxes").shape == (N, 2, 4)
    for row, corners, labels in ((0, [[1, 2, 3.5, 4], [0, 0, 9, 9]], [0, 0]), (1, [], []), (2, [[5, 6, 7, 8]], [2])):
        assert [part.tolist() for part in store.boxes(row)] == [corners, labels]
    assert (store.array("images/boxes").rows([1]) == -1).all()
    assert not [problem for _, _, problem in verify(store.path) if problem]


def test_ids_bytes_labels_and_boxes_enter_the_digest(tmp_path):
    box, size = Box(1, 2, 3, 4, 0), len(picture(0))
    file = write_file(tmp_path / "x.png", picture(0) + bytes(size))

    def digest(*labels: int, boxes: Sequence[Box] = (), name: str = "x", at: int = 0, multilabel: bool = True) -> str:
        return ImageSet("s", [Sample(name, labels, file, at, size, None, boxes)], ["a", "b"], multilabel=multilabel).digest

    boxed = [digest(boxes=boxes) for boxes in ([box], [box._replace(x1=3.5)], [box._replace(label=1)], [box, box])]
    digests = [digest(), digest(0), digest(0, 1), digest(0, multilabel=False), digest(name="y"), digest(at=1), *boxed]
    assert len({*digests}) == len(digests)
    assert digest(1, 0) == digest(0, 1), "the labels of an image have no order"


def test_join_of_multilabel_sets(tmp_path):
    given = {"one": ["ape;cat", "", "bee"], "other": ["ape;cat", "", "cat;bee"], "fewer": ["ape"]}
    sets = {name: described(tmp_path / name, *labels) for name, labels in given.items()}
    sets["same"] = sets["one"].part(range(33))
    one, other, fewer, same = (run(images, tmp_path / f"{name}.set") for name, images in sets.items())
    assert join(one, same).tolist() == [*range(33), -1, -1, -1]
    with pytest.raises(StoreError, match=r"image 'i2' has label \[0 1 0\] in .* but \[0 1 1\] in "):
        join(one, other)
    with pytest.raises(StoreError, match="different classes"):
        join(one, fewer)
