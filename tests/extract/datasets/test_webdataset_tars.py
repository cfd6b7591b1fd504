"""WebDataset tars: what is read, and that nothing is lost without a word."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.gathering import CLUTTER, FURTHER, OTHER
from tests.extract.pictures import picture, samples, write_file, write_tar
from tests.extract.untrusted import reading


def ids(images: ImageSet) -> list[str]:
    return [sample.id for sample in images.samples]


def members(tar: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(tar) as archive:
        return archive.getmembers()


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


class TestReading:
    def test_images_and_labels_in_the_order_of_the_tar(self, tmp_path: Path) -> None:
        content = [samples(6)[i] for i in (4, 1, 5)]
        images = open_images(str(write_tar(tmp_path / "a.tar", content)))
        assert [(s.id, s.label) for s in images.samples] == [("0004", 1), ("0001", 1), ("0005", 2)]
        assert [s.read() for s in images.samples] == [c["png"] for c in content]
        assert images.all_problems() == []
        assert images.classes is None

    @pytest.mark.parametrize("source", ["t-{00..02}.tar", "t-*.tar", "", "t-0[0-2].tar"])
    def test_several_tars(self, source: str, tmp_path: Path) -> None:
        for i in (2, 0, 1):  # written in another order than read
            write_tar(tmp_path / "tars" / f"t-{i:02}.tar", samples(2, 2 * i))
        images = open_images(str(tmp_path / "tars" / source))
        assert ids(images) == [f"{i:04}" for i in range(6)]

    @pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_formats_and_long_names(self, form: int, tmp_path: Path) -> None:
        long = "deep/" * 25 + "n" * 90 + "é"  # beyond the 100 bytes of a plain header
        with tarfile.open(tmp_path / "a.tar", "w", format=form) as archive:
            for i, key in enumerate((long, "short")):
                add(archive, f"{key}.png", picture(i))
                add(archive, f"{key}.cls", b"%d" % i)
        images = open_images(str(tmp_path / "a.tar"))
        assert [(s.id, s.label) for s in images.samples] == [(long, 0), ("short", 1)]
        assert [s.read() for s in images.samples] == [picture(0), picture(1)]
        assert images.all_problems() == []

    def test_folders_and_other_members_are_no_samples(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            folder = tarfile.TarInfo("train")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            add(archive, "README", b"hello")
            add(archive, "train/0.cls", b" 7\n")
            add(archive, "train/0.JPG", picture(0, "jpeg"))
            add(archive, "train/0.json", b"{}")
        images = open_images(str(tmp_path / "a.tar"))
        assert [(s.id, s.label) for s in images.samples] == [("train/0", 7)]
        assert images.all_problems() == []

    def test_image_whose_members_lie_apart(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for name, data in (("0.png", picture(0)), ("1.png", picture(1)), ("0.cls", b"5"), ("1.cls", b"6")):
                add(archive, name, data)
        assert [(s.id, s.label) for s in open_images(str(tmp_path / "a.tar")).samples] == [("0", 5), ("1", 6)]


class TestClassNames:
    def test_above_the_tars(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "train" / "a.tar", samples(3))
        write_file(tmp_path / "classes.txt", b"ape\r\nbee \r\n\r\ncat")
        assert open_images(str(tmp_path / "train" / "a.tar")).classes == ["ape", "bee", "cat"]

    def test_given_ones_win(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "a.tar", samples(3))
        write_file(tmp_path / "classes.txt", b"ape\nbee\ncat\n")
        given = write_file(tmp_path / "names.txt", b"x\ny\nz\nw\n")
        assert open_images(str(tmp_path), classes=given).classes == ["x", "y", "z", "w"]


class TestMissingTars:
    @pytest.mark.parametrize("source", ["a.tar", "t-{0..1}.tar", "t-*.tar"])
    def test_no_such_tar(self, source: str, tmp_path: Path) -> None:
        if "{" in source:
            write_tar(tmp_path / "t-0.tar", samples(1))  # and no t-1.tar
        with pytest.raises(DataError, match=r"there is no tar '.*\.tar' \(of '.*'\); check the path, the numbers in braces"):
            open_images(str(tmp_path / source))


def only_problem(tar: Path) -> str:
    """What is wrong with the second of two tars as a whole; the first is sound, and is read all the same."""
    write_tar(tar.parent / "0.tar", samples(2, 100))
    images = open_images(f"{tar.parent}/{{0,{tar.stem}}}.tar")
    assert ids(images)[:2] == ["0100", "0101"]
    [problem] = images.problems
    return problem


class TestDamagedTars:
    def test_empty_file(self, tmp_path: Path) -> None:
        tar = write_file(tmp_path / "a.tar", b"")
        assert only_problem(tar) == f"{tar} is empty (0 bytes); write it again"

    @pytest.mark.parametrize("content", [[], [{"__key__": "x", "txt": b"hello"}]])
    def test_no_images(self, content: list[dict[str, object]], tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", content)
        assert only_problem(tar) == f"{tar} has no images; expected members like KEY.png and KEY.cls"

    @pytest.mark.parametrize(
        "content", [b"no tar at all, but long enough to be one" * 40, gzip.compress(bytes(10240))], ids=["text", "gzip"]
    )
    def test_no_tar(self, content: bytes, tmp_path: Path) -> None:
        tar = write_file(tmp_path / "a.tar", content)
        assert only_problem(tar).startswith(f"{tar} is not a whole tar: ")

    @pytest.mark.parametrize(("module", "kind"), [(gzip, "gzip"), (bz2, "bzip2"), (lzma, "xz")], ids=str)
    def test_compressed(self, module: ModuleType, kind: str, tmp_path: Path) -> None:
        whole = write_tar(tmp_path / "x.tar", samples(2)).read_bytes()
        assert f"it is compressed ({kind})" in only_problem(write_file(tmp_path / "a.tar", module.compress(whole)))

    def test_cut_in_a_member(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", samples(3))
        last = max((m for m in members(tar) if m.name.endswith("png")), key=lambda m: m.offset)
        cut = last.offset_data + last.size // 2
        write_file(tar, tar.read_bytes()[:cut])
        end = last.offset_data + last.size
        assert only_problem(tar) == f"{tar} is truncated: {last.name!r} ends at byte {end}, the file at {cut}"
        images = open_images(str(tar))
        assert ids(images) == ["0000", "0001", "0002"], "the sample that was hit is not forgotten"
        assert images.samples[2].problem == "has a label but no image (members: cls)"

    def test_cut_in_a_header(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", samples(3))
        write_file(tar, tar.read_bytes()[: members(tar)[2].offset + 100])
        assert only_problem(tar) == f"{tar} is truncated: it has no end-of-archive marker after 1 samples"

    def test_cut_in_the_padding_of_a_member(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", samples(2))
        last = members(tar)[-1]
        write_file(tar, tar.read_bytes()[: last.offset_data + last.size + 1])
        assert only_problem(tar).startswith(f"{tar} is not a whole tar: ")

    @pytest.mark.parametrize("n", [2, 4])
    def test_cut_between_two_members(self, n: int, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", samples(3))
        write_file(tar, tar.read_bytes()[: members(tar)[n].offset])
        assert only_problem(tar) == f"{tar} is truncated: it has no end-of-archive marker after {n // 2} samples"

    def test_cut_behind_an_image_that_ends_in_zeros(self, tmp_path: Path) -> None:
        """A black .ppm is zeros to its end; they are not an end-of-archive marker."""
        black = b"P6 32 32 255\n" + bytes(3 * 32 * 32)
        content = [{"__key__": str(i), "cls": b"0", "ppm": black} for i in range(3)]
        tar = write_tar(tmp_path / "a.tar", content)
        assert ids(open_images(str(tar))) == ["0", "1", "2"]
        assert open_images(str(tar)).all_problems() == []
        last = [m for m in members(tar) if m.name.endswith("ppm")][1]
        cut = last.offset_data + -(-last.size // 512) * 512
        assert tar.read_bytes()[cut - 512 : cut] == bytes(512)
        write_file(tar, tar.read_bytes()[:cut])
        assert only_problem(tar) == f"{tar} is truncated: it has no end-of-archive marker after 2 samples"

    def test_damaged_header_behind_an_image_that_ends_in_zeros(self, tmp_path: Path) -> None:
        black = b"P6 32 32 255\n" + bytes(3 * 32 * 32)
        tar = write_tar(tmp_path / "a.tar", [{"__key__": str(i), "cls": b"0", "ppm": black} for i in range(3)])
        data = bytearray(tar.read_bytes())
        data[members(tar)[4].offset + 3] ^= 1
        write_file(tar, bytes(data))
        assert only_problem(tar) == f"{tar} is truncated: it has no end-of-archive marker after 2 samples"

    def test_one_block_of_zeros_is_enough(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", samples(2))
        last = members(tar)[-1]
        end = last.offset_data + -(-last.size // 512) * 512
        write_file(tar, tar.read_bytes()[: end + 512])
        assert open_images(str(tar)).all_problems() == []

    def test_tars_joined_by_cat(self, tmp_path: Path) -> None:
        one, two = write_tar(tmp_path / "1.tar", samples(2)), write_tar(tmp_path / "2.tar", samples(2, 2))
        joined = write_file(tmp_path / "a.tar", one.read_bytes() + two.read_bytes())
        assert f"{joined} goes on behind its end-of-archive marker" in only_problem(joined)

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
    def test_links(self, kind: bytes, tmp_path: Path) -> None:
        tar = tmp_path / "a.tar"
        with tarfile.open(tar, "w") as archive:
            link = tarfile.TarInfo("0.png")
            link.type, link.linkname = kind, "elsewhere.png"
            archive.addfile(link)
            add(archive, "1.png", picture(0))
            add(archive, "1.cls", b"0")
        assert only_problem(tar) == f"{tar}: member '0.png' is a link or device, expected a file"


def label(text: bytes) -> Callable[[Path], Path]:
    return lambda folder: write_tar(folder / "a.tar", [*samples(1), {"__key__": "bad", "png": picture(0), "cls": text}])


class TestNames:
    """What is a sample, and what is left out, by the names of members."""

    def labels(self, folder: Path, *names: str) -> dict[str, int | None]:
        images = self.images(folder, *names)
        assert images.all_problems() == []
        return {sample.id: sample.label for sample in images.samples}

    def images(self, folder: Path, *names: str) -> ImageSet:
        """Of a tar of these members, in this order; labels count."""
        with tarfile.open(folder / "a.tar", "w") as archive:
            for i, name in enumerate(names):
                add(archive, name, b"%d" % i if name.lower().endswith(".cls") else b"{}" if "json" in name else picture(i))
        return open_images(str(folder / "a.tar"))

    def test_keys_with_dots_have_an_image_and_a_label_of_their_own(self, tmp_path: Path) -> None:
        names = [f"{key}{end}" for key in ("img1", "img2", "img.V2", "d.d/x_0.5", "y", "a.b.c") for end in (".png", ".cls")]
        assert self.labels(tmp_path, *names) == {"img1": 1, "img2": 3, "img.V2": 5, "d.d/x_0.5": 7, "y": 9, "a.b.c": 11}

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_key_that_is_the_beginning_of_another(self, order: int, tmp_path: Path) -> None:
        names = ["img.png", "img.cls", "x.png", "x.cls", "img.v2.png", "img.v2.cls"][::order]
        assert list(self.labels(tmp_path, *names)) == ["img", "x", "img.v2"][::order]

    def test_without_any_label_keys_with_dots_are_samples_too(self, tmp_path: Path) -> None:
        assert list(self.labels(tmp_path, "a.1.png", "a.2.png", "b.png")) == ["a.1", "a.2", "b"]

    @pytest.mark.parametrize("beside", [("0.mask.png",), ("0.jpg",), ("0.pgm", "0.tga"), ("0.depth.png", "0.depth.json")])
    def test_further_pictures_of_a_key_change_nothing_and_are_counted(self, beside: tuple[str, ...], tmp_path: Path) -> None:
        names = ["0.png", "0.cls", "1.png", "1.cls"]
        digest = self.images(tmp_path, *names).digest
        images = self.images(tmp_path, *names, *beside)
        assert images.digest == digest
        pictures = [name for name in beside if "json" not in name]
        assert images.left_out.by_reason == {FURTHER: (len(pictures), min(pictures))}

    def test_a_format_that_was_read_before_wins_whatever_the_order(self, tmp_path: Path) -> None:
        [sample] = self.images(tmp_path, "0.pgm", "0.png", "0.cls").samples
        assert sample.read() == picture(1)

    @pytest.mark.parametrize("name", ["0.jfif", "0.avif", "0.JP2", "0.unknown", "0"])
    def test_more_formats_and_images_by_content(self, name: str, tmp_path: Path) -> None:
        assert self.labels(tmp_path, name, "0.cls") == {"0": 1}

    def test_clutter_and_texts_are_counted(self, tmp_path: Path) -> None:
        names = ["__MACOSX/._0.png", "._0.png", "d/.DS_Store", "0.png", "0.cls", "0.json", "lost.json"]
        images = self.images(tmp_path, *names)
        assert ids(images) == ["0"]
        assert images.left_out.by_reason == {CLUTTER: (3, "._0.png"), OTHER: (1, "lost.json")}

    @pytest.mark.parametrize("names", [("0.cr2",), ("0.dng", "1.svg")])
    def test_pictures_that_cannot_be_read_are_lost(self, names: tuple[str, ...], tmp_path: Path) -> None:
        with pytest.raises(DataError, match=rf"1 are taken and {len(names)} are not; .*{names[0]}.*--allow-left-out"):
            self.images(tmp_path, "x.png", "x.cls", *names)

    def test_images_beside_tars_are_lost(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "d/a.tar", samples(2))
        assert not open_images(str(tmp_path / "d")).left_out
        write_file(tmp_path / "d/cat/0.png", picture(0))
        with pytest.raises(DataError, match=r"images beside tars, .*: 1 \(e\.g\. cat/0\.png\)"):
            open_images(str(tmp_path / "d"))
        assert len(open_images(str(tmp_path / "d"), allow_left_out=True)) == 2

    def test_a_set_without_labels(self, tmp_path: Path) -> None:
        images = self.images(tmp_path, "0.png", "0.json", "1.png")
        assert (ids(images), images.is_unlabelled, images.all_problems()) == (["0", "1"], True, [])

    def test_an_empty_image_is_named(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", [*samples(1), {"__key__": "bare", "png": b"", "cls": 0}])
        assert open_images(str(tar)).all_problems() == [f"'bare' in {tar}: is empty (0 bytes)"]


class TestDamagedSamples:
    def test_no_label(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", [*samples(1), {"__key__": "bare", "png": picture(1)}])
        images = open_images(str(tar))
        assert images.all_problems() == [f"'bare' in {tar}: has no label (expected a member .cls with an integer)"]
        assert [(s.id, s.label) for s in images.samples] == [("0000", 0), ("bare", None)]

    def test_label_without_image(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", [*samples(1), {"__key__": "bare", "cls": 1, "txt": "x"}])
        images = open_images(str(tar))
        assert images.all_problems() == [f"'bare' in {tar}: has a label but no image (members: cls, txt)"]
        assert len(images) == 2

    @pytest.mark.parametrize("text", [b"cat", b"-1", b"1.5", b"", b"4294967296", b"\xff\xfe", "²".encode()])
    def test_label_that_is_no_integer(self, text: bytes, tmp_path: Path) -> None:
        tar = label(text)(tmp_path)
        images = open_images(str(tar))
        [problem] = images.all_problems()
        assert problem.startswith(f"'bad' in {tar}: has label ")
        assert problem.endswith(", expected an integer from 0")
        assert images.samples[1].label is None

    def test_member_twice_in_one_tar(self, tmp_path: Path) -> None:
        tar = tmp_path / "a.tar"
        with tarfile.open(tar, "w") as archive:
            for name, data in (("0.png", picture(0)), ("0.cls", b"0"), ("0.png", picture(1)), ("0.cls", b"1")):
                add(archive, name, data)
        assert only_problem(tar) == f"{tar}: member '0.png' appears twice; ids must be unique"


def header(name: str = "a.png", size: int = 0, kind: bytes = tarfile.REGTYPE, pax: bytes | None = None) -> bytes:
    """Of a member; with its further fields before it, as they are."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    content = member.tobuf(tarfile.GNU_FORMAT)
    if pax is None:
        return content
    return header("pax", len(pax), tarfile.XHDTYPE) + pax + bytes(-len(pax) % 512) + content


def field(text: str) -> bytes:
    """A further field of a pax header."""
    length = len(text) + 2
    length += len(str(length + len(str(length)) - 1))
    return f"{length} {text}\n".encode()


def header_before(name: str) -> bytes:
    return header(name, 8, tarfile.XHDTYPE) + b"8 a=bcd\n" + bytes(504)


SPARSE = field("GNU.sparse.major=1") + field("GNU.sparse.minor=0") + field("GNU.sparse.name=a.png")
SOUND, END = header("b.png", 3) + b"abc".ljust(512, b"\0"), bytes(1024)
HOSTILE = {
    "a member before itself": header(size=-512) + END,
    "a member that is the next one": SOUND + header(size=-512) + END,
    "a name before itself": header("x", -512, tarfile.GNUTYPE_LONGNAME) + header() + END,
    "further fields that lead back": SOUND + header(pax=field("size=-1536")) + END,
    "clutter that leads back": SOUND + header(".DS_Store", pax=field("size=-1536")) + END,
    "a name of a terabyte": header("x", 1 << 40, tarfile.GNUTYPE_LONGNAME) + header() + END,
    "fields of a terabyte": header("x", 1 << 40, tarfile.XHDTYPE) + header() + END,
    "a member of a terabyte": header(size=1 << 40) + END,
    "a field that is a long number": header(pax=b"1" * 3_000_000) + END,
    "a name of slashes": header(pax=field("path=" + "/" * 32_000 + "a")) + END,
    "fields before fields": header_before("x") * 3000 + header() + END,
    "a sparse member without end": header(pax=SPARSE, size=512) + b"1000000000000\n".ljust(512, b"\0") + END,
    "a sparse member of the old form that is cut": header(kind=tarfile.GNUTYPE_SPARSE, size=512)[:482] + b"\1" + bytes(29),
}


def test_hostile() -> None:
    with reading("tar") as process:
        for what, content in HOSTILE.items():
            outcome = process.outcome(content)
            assert outcome.startswith("refused: "), (what, outcome)
        assert process.outcome(SOUND + END) == "read"
