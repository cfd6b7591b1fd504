"""WebDataset tars: what is read, and that nothing is lost without a word."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.gathering import CLUTTER, FURTHER, OTHER
from tests.extract.pictures import picture, samples, write_file, write_tar
from tests.extract.untrusted import reading


def ids(images: ImageSet) -> list[str]:
    return [sample.id for sample in images.samples]


def tar_of(path: Path, *members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    """A tar of these members, in this order."""
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def header(name: str = "a.png", size: int = 0, kind: bytes = tarfile.REGTYPE, pax: bytes | None = None) -> bytes:
    """Of a member; with its further fields before it, as they are."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    content = member.tobuf(tarfile.GNU_FORMAT)
    if pax is None:
        return content
    return header("pax", len(pax), tarfile.XHDTYPE) + pax + bytes(-len(pax) % 512) + content


class TestReading:
    @pytest.mark.parametrize("source", ["t-{00..02}.tar", "t-*.tar", "", "t-0[0-2].tar"])
    def test_several_tars(self, source: str, tmp_path: Path) -> None:
        for i in (2, 0, 1):  # written in another order than read
            write_tar(tmp_path / "tars" / f"t-{i:02}.tar", samples(2, 2 * i))
        assert ids(open_images(str(tmp_path / "tars" / source))) == [f"{i:04}" for i in range(6)]

    @pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_formats_long_names_and_members_that_lie_apart(self, form: int, tmp_path: Path) -> None:
        long = "deep/" * 25 + "n" * 90 + "é"  # beyond the 100 bytes of a plain header
        content = ((f"{long}.png", picture(0)), ("short.png", picture(1)), (f"{long}.cls", b"0"), ("short.cls", b"1"))
        images = open_images(str(tar_of(tmp_path / "a.tar", *content, form=form)))
        assert [(s.id, s.label) for s in images.samples] == [(long, 0), ("short", 1)]
        assert [s.read() for s in images.samples] == [picture(0), picture(1)]
        assert images.all_problems() == []

    def test_folders_and_other_members_are_no_samples(self, tmp_path: Path) -> None:
        content = (("README", b"hello"), ("train/0.cls", b" 7\n"), ("train/0.JPG", picture(0, "jpeg")), ("train/0.json", b"{}"))
        tar = tar_of(tmp_path / "a.tar", *content)
        images = open_images(str(write_file(tar, header("train", kind=tarfile.DIRTYPE) + tar.read_bytes())))
        assert ([(s.id, s.label) for s in images.samples], images.all_problems()) == ([("train/0", 7)], [])

    def test_names_of_classes_above_the_tars_unless_others_are_given(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "train" / "a.tar", samples(3))
        write_file(tmp_path / "classes.txt", b"ape\r\nbee \r\n\r\ncat")
        given = write_file(tmp_path / "names.txt", b"x\ny\nz\nw\n")
        assert open_images(str(tmp_path / "train/a.tar")).classes == ["ape", "bee", "cat"]
        assert open_images(str(tmp_path / "train"), classes=given).classes == ["x", "y", "z", "w"]

    @pytest.mark.parametrize("source", ["a.tar", "t-{0..1}.tar", "x-*.tar"])
    def test_no_such_tar(self, source: str, tmp_path: Path) -> None:
        write_tar(tmp_path / "t-0.tar", samples(1))  # and no t-1.tar
        with pytest.raises(DataError, match=r"there is no tar '.*\.tar' \(of '.*'\); check the path, the numbers in braces"):
            open_images(str(tmp_path / source))


def problem_of(tar: Path) -> str:
    """What is wrong with the second of two tars as a whole; the first is sound, and is read all the same."""
    write_tar(tar.parent / "0.tar", samples(2, 100))
    images = open_images(f"{tar.parent}/{{0,{tar.stem}}}.tar")
    assert ids(images)[:2] == ["0100", "0101"]
    assert all(problem.startswith(str(tar)) for problem in images.problems)
    return "".join(images.problems).removeprefix(str(tar))


BLACK = b"P6 32 32 255\n" + bytes(3 * 32 * 32)  # zeros to its end; they are not an end-of-archive marker
LINKED = b"".join((header("1.png", 3), b"abc".ljust(512, b"\0"), header("1.cls", 1), b"0".ljust(512, b"\0"), bytes(1024)))
NO_END = " is truncated: it has no end-of-archive marker after {} samples"
Members = Sequence[tarfile.TarInfo]


def end_of(member: tarfile.TarInfo) -> int:
    """Of its blocks."""
    return member.offset_data + -(-member.size // 512) * 512


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda whole, _: b"", " is empty (0 bytes); write it again"),
        (lambda whole, _: b"no tar at all, but long enough to be one" * 40, " is not a whole tar: "),
        *(
            (lambda whole, _, module=module: module.compress(whole), f" is not a whole tar: it is compressed ({name})")
            for module, name in ((gzip, "gzip"), (bz2, "bzip2"), (lzma, "xz"))
        ),
        (lambda whole, members: whole[: members[2].offset + 100], NO_END.format(1)),
        (lambda whole, members: whole[: members[2].offset], NO_END.format(1)),
        (lambda whole, members: whole[: members[4].offset], NO_END.format(2)),
        (lambda whole, members: whole[: end_of(members[3])], NO_END.format(2)),
        (lambda whole, members: whole[: (at := members[4].offset + 3)] + b"?" + whole[at + 1 :], NO_END.format(2)),
        (lambda whole, members: whole[: members[5].offset_data + members[5].size + 1], " is not a whole tar: "),
        (lambda whole, members: whole[: end_of(members[5]) + 512], ""),  # one block of zeros is enough
        (lambda whole, _: whole + whole, " goes on behind its end-of-archive marker (byte "),
        *(
            (lambda whole, _, kind=kind: header(kind=kind) + LINKED, ": member 'a.png' is a link or device, expected a file")
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)
        ),
        (lambda whole, _: header("1.png") + LINKED, ": member '1.png' appears twice; ids must be unique"),
        (lambda whole, _: header("x.txt") + bytes(1024), " has no images; expected members like KEY.png and KEY.cls"),
        (lambda whole, _: bytes(10240), " has no images; expected members like KEY.png and KEY.cls"),
    ],
)
def test_damaged_tars(change: Callable[[bytes, Members], bytes], problem: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [{"__key__": str(i), "cls": b"0", "ppm": BLACK} for i in range(3)])
    with tarfile.open(tar) as archive:
        members = archive.getmembers()
    assert problem_of(tar) == ""
    write_file(tar, change(tar.read_bytes(), members))
    assert problem_of(tar)[: len(problem) or None] == problem


def test_a_sample_in_which_a_tar_is_cut_is_not_forgotten(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", samples(3))
    with tarfile.open(tar) as archive:
        last = archive.getmembers()[-1]
    cut, end = last.offset_data + last.size // 2, last.offset_data + last.size
    write_file(tar, tar.read_bytes()[:cut])
    assert problem_of(tar) == f" is truncated: {last.name!r} ends at byte {end}, the file at {cut}"
    images = open_images(str(tar))
    assert ids(images) == ["0000", "0001", "0002"]
    assert images.samples[2].problem == "has a label but no image (members: cls)"


@pytest.mark.parametrize(
    ("members", "label", "problem"),
    [
        ({"png": picture(1)}, None, "has no label (expected a member .cls with an integer)"),
        ({"cls": 1, "txt": "x"}, None, "has a label but no image (members: cls, txt)"),
        ({"png": b"", "cls": 0}, 0, "is empty (0 bytes)"),
        *(
            ({"png": picture(0), "cls": text}, None, f"has label {shown!r}, expected an integer from 0")
            for text, shown in (
                (b"cat", "cat"), (b"-1", "-1"), (b"1.5", "1.5"), (b"", ""), (b"4294967296", "4294967296"),
                (b"\xff\xfe", "\ufffd" * 2), ("²".encode(), "\ufffd" * 2)
            )
        ),
    ],
)  # fmt: skip
def test_damaged_samples(members: dict[str, object], label: int | None, problem: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [*samples(1), {"__key__": "bad", **members}])
    images = open_images(str(tar))
    assert images.all_problems() == [f"'bad' in {tar}: {problem}"]
    assert [(s.id, s.label) for s in images.samples] == [("0000", 0), ("bad", label)]


class TestNames:
    """What is a sample, and what is left out, by the names of members."""

    def images(self, folder: Path, *names: str) -> ImageSet:
        """Of a tar of these members, in this order; labels count."""
        contents = (
            b"%d" % i if name.endswith(".cls") else b"{}" if "json" in name else picture(i) for i, name in enumerate(names)
        )
        return open_images(str(tar_of(folder / "a.tar", *zip(names, contents, strict=True))))

    @pytest.mark.parametrize(
        ("names", "labels"),
        [
            # Keys with dots have an image and a label of their own,
            ("img1 img2 img.V2 d.d/x_0.5 y a.b.c", {"img1": 1, "img2": 3, "img.V2": 5, "d.d/x_0.5": 7, "y": 9, "a.b.c": 11}),
            # also if another begins as they do, in the order of the tar.
            ("img x img.v2", {"img": 1, "x": 3, "img.v2": 5}),
            ("img.v2 x img", {"img.v2": 1, "x": 3, "img": 5}),
            # Without any label they are samples, too.
            ("a.1.png a.2.png b.png", {"a.1": None, "a.2": None, "b": None}),
            # More formats, and images by content.
            *((f"{name} 0.cls", {"0": 1}) for name in ("0.jfif", "0.avif", "0.JP2", "0.unknown", "0.")),
        ],
    )
    def test_keys(self, names: str, labels: dict[str, int | None], tmp_path: Path) -> None:
        members = names.split()
        if not any(name.endswith((".cls", ".png")) for name in members):
            members = [f"{key}{end}" for key in members for end in (".png", ".cls")]
        images = self.images(tmp_path, *(name.removesuffix(".") for name in members))
        assert [(sample.id, sample.label) for sample in images.samples] == [*labels.items()]
        assert images.all_problems() == []

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
