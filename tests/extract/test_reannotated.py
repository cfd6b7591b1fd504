"""The same images under other names, labels, boxes or maps: what describes them is theirs, their features are kept."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from extract.datasets import ImageSet, open_images
from extract.layouts import annotations_of, stale_annotations
from extract.requests import Request
from extract.run import confirm, rows_in
from extract.sample import SampleCheck
from extract.writing import Settings
from store import StoreError
from tests.extract.extracting import extract
from tests.extract.pictures import picture, samples, write_file, write_tar, write_text
from tests.extract.tiny import Counting, tiny_encoder
from tests.folders import files

N = 36  # 32 + 4 rows
GIVEN: dict[str, Any] = {"shard_rows": 32, "batch_size": 8, "workers": 2, "statistics": ("cls_self",), "maps": False}
C = range(2, N, 3)  # images of the last class
Edit = Callable[[Path], object]


def folder(root: Path) -> Path:
    """Images of three classes, of which the last ones are equal."""
    for i in range(N):
        write_file(root / "abc"[i % 3] / f"{i:02d}.png", picture(min(i, N - 3)))
    return root


def table(columns: str, line: Callable[[int], str]) -> Callable[[Path], Path]:
    """A list of images with these columns."""

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
    """Label maps of two classes."""
    write_text(root / "label-classes.txt", "sky", "road")
    for i in range(N):
        write_file(root / f"images/train/{i:02d}.png", picture(i))
        draw_map(root, i, np.arange(40) < i)
    return root


def draw_map(root: Path, i: int, is_road: np.ndarray) -> None:
    path = root / f"labels/train/{i:02d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.repeat(is_road[:, None], 36, 1).astype(np.uint8)).save(path)


def move(old: str, new: str) -> Edit:
    def edit(root: Path) -> None:
        (root / new).parent.mkdir(exist_ok=True)
        (root / old).rename(root / new)

    return edit


def remove(*names: str) -> Edit:
    return lambda root: [(root / name).unlink() for name in names]


def line(old: str, new: str) -> Edit:
    """Change a line of the list."""

    def edit(root: Path) -> None:
        before = (root / "images.csv").read_text()
        assert before.count(f"{old}\n") == 1, old
        (root / "images.csv").write_text(before.replace(f"{old}\n", f"{new}\n"))

    return edit


def reverse_lines(root: Path) -> None:
    first, *others = (root / "images.csv").read_text().splitlines()
    write_text(root / "images.csv", first, *others[::-1])


LABELS = table("id,path,label", lambda i: str(i % 3))
SEVERAL = table("id,path,labels", lambda i: ["ape;cat", "", "bee"][i % 3])
BOXES = table("id,path,label,boxes", lambda i: f"{i % 3},1 2 3 {4 + i}")
EDITS: dict[str, tuple[Callable[[Path], Path], Edit]] = {
    "an image in another class": (folder, move("a/00.png", "b/zz.png")),
    "the first of its class now": (folder, move("c/35.png", "a/!.png")),
    "a copy in another class": (folder, lambda root: shutil.copy(root / "a/00.png", root / "b/00.png")),
    "without the copies": (folder, remove("b/34.png", "c/35.png")),
    "a class merged into another": (folder, lambda root: [move(f"c/{i:02d}.png", f"b/{i:02d}.png")(root) for i in C]),
    "a label in a list": (LABELS, line("i4,04.png,1", "i4,04.png,2")),
    "an id in a list": (LABELS, line("i4,04.png,1", "other,04.png,1")),
    "a list in another order": (LABELS, reverse_lines),
    "a longer id": (LABELS, line("i9,09.png,0", "an-id-that-is-longer-than-all-others,09.png,0")),
    "one of several labels": (SEVERAL, line("i3,03.png,ape;cat", "i3,03.png,ape")),
    "one box more": (BOXES, line("i4,04.png,1,1 2 3 8", "i4,04.png,1,1 2 3 8;0 0 5 5")),
    "no box": (BOXES, line("i4,04.png,1,1 2 3 8", "i4,04.png,1,")),
    "a label in a tar": (tars, lambda root: write_tar(root / "0.tar", [{**one, "cls": 2} for one in samples(20)])),
    "a label map": (maps, lambda root: draw_map(root, 5, np.arange(40) >= 30)),
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
    """Under the key of its present images."""
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
