"""Which files of a folder are images, and that all others are counted and named."""

import os
from pathlib import Path
from typing import Any

import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.gathering import BACK, BROKEN, CLUTTER, LOCKED, OTHER, SAME_NAME, SPECIAL, UNREADABLE, images_in, walk
from extract.datasets.pixels import PACKAGES, readable
from tests.extract.pictures import picture, write_file, write_pictures


def opened(root: Path) -> ImageSet:
    return open_images(str(root), allow_left_out=True)


def counted(images: ImageSet) -> dict[Any, tuple[int, str]]:
    return images.left_out.by_reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "d", "cat/0.jpg", "cat/1.jpg", "dog/0.jpg", "dog/1.jpg")


def link(at: Path, to: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(to)


def failing(monkeypatch: pytest.MonkeyPatch, folder: Path, error: OSError) -> None:
    """Make a folder one that cannot be listed, for root as well, whom permissions do not stop."""
    scandir = os.scandir

    def refused(path: str) -> object:
        if str(path) == str(folder):
            raise error
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)


DENIED = PermissionError(13, "Permission denied")


class TestLinks:
    def test_linked_folders_are_read_wherever_they_are(self, root: Path, tmp_path: Path) -> None:
        far = write_pictures(tmp_path / "far", "a.jpg", "deep/b.jpg")
        link(root / "cat/site", far)
        link(root / "eel", far)  # a class
        link(far / "deep/more", write_pictures(tmp_path / "farther", "c.jpg"))
        link(root / "cat/2.jpg", write_file(tmp_path / "annex/key", picture(3)))  # an image
        linked = ["a", "deep/b", "deep/more/c"]
        assert [*open_images(str(root)).samples.ids] == [
            *("cat/0", "cat/1", "cat/2", *(f"cat/site/{name}" for name in linked), "dog/0", "dog/1"),
            *(f"eel/{name}" for name in linked),
        ]
        assert sorted(images_in(root / "cat")) == ["0.jpg", "1.jpg", "2.jpg", *(f"site/{name}.jpg" for name in linked)]

    @pytest.mark.parametrize("to", [".", "../..", "../dog/back"])
    def test_loops_end_and_every_image_comes_once(self, to: str, root: Path) -> None:
        link(root / "cat/loop", Path(to))
        if "back" in to:
            link(root / "dog/back", Path("../cat"))
        images = open_images(str(root))
        assert len(images) == (6 if "back" in to else 4)  # cat in dog: another path to other rows, as torchvision reads it
        assert counted(images)[BACK][0] == (2 if "back" in to else 1)

    def test_links_to_folders_with_links(self, root: Path, tmp_path: Path) -> None:
        """Two links at each of 30 steps: none leads to a folder above itself, and there are 2^30 ways."""
        for step in range(30):
            for name in "ab":
                link(tmp_path / f"steps/{step}/{name}", tmp_path / f"steps/{step + 1}")
        (tmp_path / "steps/30").mkdir()
        link(root / "cat/more", tmp_path / "steps/0")
        with pytest.raises(DataError, match=r"to one folder in more than 100 ways, e\.g\. cat/more/[ab/]+; remove "):
            open_images(str(root))

    def test_a_class_that_is_a_broken_link_does_not_renumber_the_others(self, root: Path) -> None:
        labels = {sample.id: sample.label for sample in open_images(str(root)).samples}
        link(root / "bee", Path("/nowhere/bee"))
        with pytest.raises(DataError, match=r"lead nowhere: 1 .*bee"):
            open_images(str(root))
        images = opened(root)
        assert images.classes == ["bee", "cat", "dog"]
        assert {sample.id: sample.label for sample in images.samples} == {name: 1 + (n or 0) for name, n in labels.items()}

    def test_one_lost_image_in_a_hundred_is_printed_and_no_error(self, root: Path) -> None:
        write_pictures(root, *(f"cat/more-{i}.jpg" for i in range(95)))
        link(root / "cat/gone.jpg", Path("nowhere"))
        assert counted(open_images(str(root))) == {BROKEN: (1, "cat/gone.jpg")}
        for name in ("a", "b"):
            link(root / f"cat/{name}.jpg", Path("nowhere"))
        with pytest.raises(DataError, match=r"99 are taken and 3 are not; .*\(e\.g\. cat/a\.jpg\).*--allow-left-out"):
            open_images(str(root))


class TestPermissions:
    def test_a_folder_that_may_not_be_read_hides_any_number(self, root: Path, monkeypatch) -> None:
        write_pictures(root, *(f"dog/more-{i}.jpg" for i in range(200)))
        failing(monkeypatch, root / "cat", DENIED)
        with pytest.raises(DataError, match=r"may not read: 1 .*cat"):
            open_images(str(root))
        images = opened(root)
        assert counted(images) == {LOCKED: (1, "cat")}
        assert images.classes == ["cat", "dog"]
        with pytest.raises(DataError, match=r"cannot be read as a whole: .*may not read"):
            list(images_in(root))
        failing(monkeypatch, root, DENIED)
        with pytest.raises(DataError, match=r"has no images; .*may not read: 1 \(e\.g\. \.\)"):
            open_images(str(root))


class TestByName:
    @pytest.mark.parametrize("end", ["JFIF", "ppm", "tga"])
    def test_extensions_that_pillow_reads(self, end: str, root: Path) -> None:
        write_file(root / f"cat/2.{end}", picture(0, {"JFIF": "jpeg"}.get(end, end)))
        images = open_images(str(root))
        assert images.samples.ids[2] == "cat/2"
        assert images.image(2).mode == "RGB"

    @pytest.mark.parametrize("end", PACKAGES)
    def test_a_format_whose_package_is_missing_keeps_its_row_and_says_so(self, end: str, root: Path, monkeypatch) -> None:
        formats, ends = readable()
        monkeypatch.setattr("extract.datasets.pixels.readable", lambda: (formats, ends - PACKAGES.keys()))
        write_file(root / f"cat/2.{end}", b"x")
        images = open_images(str(root))
        assert images.samples.ids[2] == "cat/2"
        [problem] = images.all_problems()
        assert problem.startswith("'cat/2'")
        assert "pip install" in problem
        monkeypatch.setattr("extract.datasets.pixels.readable", lambda: (formats, ends | {end}))
        assert open_images(str(root)).all_problems() == []

    @pytest.mark.parametrize(
        ("names", "content", "counts"),
        [
            ("__MACOSX/cat/._0.jpg dog/@eaDir/x/y.jpg cat/._1.jpg cat/Thumbs.db", picture(0), {CLUTTER: (4, "__MACOSX")}),
            ("README cat/0.json cat/list.txt cat/clip.mp4 cat/Python", b"Python P6 PNG BMP", {OTHER: (5, "README")}),
            ("cat/0.CR2 cat/0.dcm cat/0.tga cat/1", picture(0), {SAME_NAME: (4, "cat/0.CR2")}),
        ],
    )
    def test_what_is_no_loss(self, names: str, content: bytes, counts: dict[Any, object], root: Path) -> None:
        before = open_images(str(root)).digest
        for name in names.split():
            write_file(root / name, content)
        images = open_images(str(root))
        assert (images.digest, images.classes) == (before, ["cat", "dog"])
        assert counted(images) == counts

    def test_what_is_lost(self, root: Path) -> None:
        """Pictures that nobody reads here, links that are broken, pipes; of which none is opened."""
        for end in ("CR2", "dng", "svg", "eps", "dcm"):
            write_file(root / f"dog/2.{end}", b"x")
        for name in ("cat/2.jpg", "cat/3.jfif"):
            link(root / name, Path("/nowhere/x.png"))
        link(root / "cat/itself.png", Path("itself.png"))
        for name in ("cat/pipe", "cat/pipe.png"):
            os.mkfifo(root / name)
        with pytest.raises(DataError, match=r"4 are taken and 9 are not; .*format that is not read here: 5 .*dog/2\.CR2"):
            open_images(str(root))
        lost = {UNREADABLE: (5, "dog/2.CR2"), BROKEN: (3, "cat/2.jpg"), SPECIAL: (1, "cat/pipe.png"), OTHER: (1, "cat/pipe")}
        assert counted(opened(root)) == lost


@pytest.mark.parametrize("form", ["png", "jpeg", "webp", "bmp", "ppm", "gif", "tiff", "avif", "jpeg2000"])
def test_images_without_an_extension_are_known_by_their_content(form: str, root: Path) -> None:
    for name in ("cat/2", "cat/2.jpg_large", "cat/2.001"):
        write_file(root / name, picture(0, form))
    images = open_images(str(root))
    assert images.samples.ids[2:5] == ["cat/2", "cat/2.001", "cat/2.jpg_large"]
    assert [images.image(row).size for row in (2, 3, 4)] == [(36, 40)] * 3


def test_a_flat_folder_is_a_set_without_labels(tmp_path: Path) -> None:
    write_pictures(tmp_path / "d", "1.jpg", "0.jpg")
    for name in ("notes/a.xml", "b.txt", "__MACOSX/._0.jpg"):
        write_file(tmp_path / "d" / name, b"x")
    images = open_images(str(tmp_path / "d"))
    assert ([*images.samples.ids], images.is_unlabelled, images.all_problems()) == (["0", "1"], True, [])


def test_walking_many_deep_folders_needs_no_recursion(tmp_path: Path) -> None:
    write_file(tmp_path / ("a/" * 300) / "x.png", b"x")
    assert [found.name for found in walk(tmp_path)] == ["a/" * 300 + "x.png"]
