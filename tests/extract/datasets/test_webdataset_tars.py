"""WebDataset tars: what is read, and that nothing is lost without a word."""

import io
import lzma
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.gathering import CLUTTER, FURTHER, OTHER
from tests.extract.pictures import picture, samples, write_file, write_tar
from tests.extract.untrusted import reading


def tar_of(path: Path, *members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
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


@pytest.mark.parametrize("source", ["t-{00..02}.tar", "t-*.tar", "", "t-0[0-2].tar"])
def test_several_tars(source: str, tmp_path: Path) -> None:
    for i in (2, 0, 1):  # written in another order than read
        write_tar(tmp_path / "tars" / f"t-{i:02}.tar", samples(2, 2 * i))
    assert [*open_images(str(tmp_path / "tars" / source)).samples.ids] == [f"{i:04}" for i in range(6)]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats_long_names_and_members_that_lie_apart(form: int, tmp_path: Path) -> None:
    long = "deep/" * 25 + "n" * 90 + "é"  # beyond the 100 bytes of a plain header
    content = ((f"{long}.png", picture(0)), ("short.png", picture(1)), (f"{long}.cls", b"0"), ("short.cls", b"1"))
    images = open_images(str(tar_of(tmp_path / "a.tar", *content, form=form)))
    assert [(s.id, s.label) for s in images.samples] == [(long, 0), ("short", 1)]
    assert [s.read() for s in images.samples] == [picture(0), picture(1)]
    assert images.all_problems() == []


def test_folders_and_other_members_are_no_samples(tmp_path: Path) -> None:
    content = (("README", b"hello"), ("train/0.cls", b" 7\n"), ("train/0.JPG", picture(0, "jpeg")), ("train/0.json", b"{}"))
    tar = tar_of(tmp_path / "a.tar", *content)
    images = open_images(str(write_file(tar, header("train", kind=tarfile.DIRTYPE) + tar.read_bytes())))
    assert ([(s.id, s.label) for s in images.samples], images.all_problems()) == ([("train/0", 7)], [])


def test_names_of_classes_above_the_tars_unless_others_are_given(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / "a.tar", samples(3))
    write_file(tmp_path / "classes.txt", b"ape\r\nbee \r\n\r\ncat")
    given = write_file(tmp_path / "names.txt", b"x\ny\nz\nw\n")
    assert open_images(str(tmp_path / "train/a.tar")).classes == ["ape", "bee", "cat"]
    assert open_images(str(tmp_path / "train"), classes=given).classes == ["x", "y", "z", "w"]


@pytest.mark.parametrize("source", ["a.tar", "t-{0..1}.tar", "x-*.tar"])
def test_no_such_tar(source: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "t-0.tar", samples(1))  # and no t-1.tar
    with pytest.raises(DataError, match=r"there is no tar '.*\.tar' \(of '.*'\); check the path, the numbers in braces"):
        open_images(str(tmp_path / source))


def problem_of(tar: Path) -> str:
    """What is wrong with the second of two tars as a whole; the first is sound, and is read all the same."""
    write_tar(tar.parent / "0.tar", samples(2, 100))
    images = open_images(f"{tar.parent}/{{0,{tar.stem}}}.tar")
    assert images.samples.ids[:2] == ["0100", "0101"]
    assert all(problem.startswith(str(tar)) for problem in images.problems)
    return "".join(images.problems).removeprefix(str(tar))


BLACK = b"P6 32 32 255\n" + bytes(3 * 32 * 32)  # zeros to its end; they are not an end-of-archive marker
LINKED = b"".join((header("1.png", 3), b"abc".ljust(512, b"\0"), header("1.cls", 1), b"0".ljust(512, b"\0"), bytes(1024)))
NO_END = " is truncated: it has no end-of-archive marker after {} samples"
Members = Sequence[tarfile.TarInfo]


def end_of(member: tarfile.TarInfo) -> int:
    return member.offset_data + -(-member.size // 512) * 512


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda whole, _: b"", " is empty (0 bytes); write it again"),
        (lambda whole, _: b"no tar at all, but long enough to be one" * 40, " is not a whole tar: "),
        (lambda whole, _: lzma.compress(whole), " is not a whole tar: it is compressed (xz)"),
        (lambda whole, members: whole[: members[4].offset], NO_END.format(2)),
        (lambda whole, members: whole[: end_of(members[3])], NO_END.format(2)),
        (lambda whole, members: whole[: members[5].offset_data + members[5].size + 1], " is not a whole tar: "),
        (lambda whole, members: whole[: end_of(members[5]) + 512], ""),  # one block of zeros is enough
        (lambda whole, _: whole + whole, " goes on behind its end-of-archive marker (byte "),
        (lambda whole, _: header(kind=tarfile.SYMTYPE) + LINKED, ": member 'a.png' is a link or device, expected a file"),
        (lambda whole, _: header("1.png") + LINKED, ": member '1.png' appears twice; ids must be unique"),
        (lambda whole, _: header("x.txt") + bytes(1024), " has no images; expected members like KEY.png and KEY.cls"),
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
    assert [*images.samples.ids] == ["0000", "0001", "0002"]
    assert images.samples[2].problem == "has a label but no image (members: cls)"


@pytest.mark.parametrize(
    ("members", "label", "problem"),
    [
        ({"png": picture(1)}, None, "has no label (expected a member .cls with an integer)"),
        ({"cls": 1, "txt": "x"}, None, "has a label but no image (members: cls, txt)"),
        ({"png": b"", "cls": 0}, 0, "is empty (0 bytes)"),
        *(
            ({"png": picture(0), "cls": text}, None, f"has label {shown!r}, expected an integer from 0")
            for text, shown in ((b"-1", "-1"), (b"", ""), (b"4294967296", "4294967296"), ("²".encode(), "\ufffd" * 2))
        ),
    ],
)
def test_damaged_samples(members: dict[str, object], label: int | None, problem: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [*samples(1), {"__key__": "bad", **members}])
    images = open_images(str(tar))
    assert images.all_problems() == [f"'bad' in {tar}: {problem}"]
    assert [(s.id, s.label) for s in images.samples] == [("0000", 0), ("bad", label)]


def of_members(folder: Path, *names: str) -> ImageSet:
    """Images of a tar of these members, in this order; pictures and labels are their numbers."""
    contents = (b"%d" % i if name.endswith(".cls") else b"{}" if "json" in name else picture(i) for i, name in enumerate(names))
    return open_images(str(tar_of(folder / "a.tar", *zip(names, contents, strict=True))))


WITH_DOTS = "img1.png img1.cls img.V2.png img.V2.cls d.d/x_0.5.png d.d/x_0.5.cls a.b.c.png a.b.c.cls"


@pytest.mark.parametrize(
    ("names", "expected", "left_out"),
    [
        # Keys with dots have an image and a label of their own, also if another begins as they do, in the order of the tar.
        (WITH_DOTS, {"img1": (0, 1), "img.V2": (2, 3), "d.d/x_0.5": (4, 5), "a.b.c": (6, 7)}, {}),
        ("img.v2.cls img.v2.png x.cls x.png img.cls img.png", {"img.v2": (1, 0), "x": (3, 2), "img": (5, 4)}, {}),
        # Without any label they are samples, too, and the set is one without labels.
        ("a.1.png a.2.png b.png b.json", {"a.1": (0, None), "a.2": (1, None), "b": (2, None)}, {}),
        # More formats, and images by content; one that was read before wins, whatever the order.
        *((f"{name} 0.cls", {"0": (0, 1)}, {}) for name in ("0.JP2", "0.unknown", "0")),
        ("0.png 0.cls 0.mask.png", {"0": (0, 1)}, {FURTHER: (1, "0.mask.png")}),
        ("0.png 0.cls 0.tga 0.pgm", {"0": (0, 1)}, {FURTHER: (2, "0.pgm")}),
        # Clutter and texts.
        ("._0.png d/.DS_Store 0.png 0.cls a.json", {"0": (2, 3)}, {CLUTTER: (2, "._0.png"), OTHER: (1, "a.json")}),
    ],
)
def test_what_names_make_of_members(names: str, expected: dict[str, Any], left_out: dict[Any, Any], tmp_path: Path) -> None:
    images = of_members(tmp_path, *names.split())
    numbers = {picture(i): i for i in range(len(names.split()))}
    assert [(s.id, (numbers[s.read()], s.label)) for s in images.samples] == [*expected.items()]
    assert (images.all_problems(), images.left_out.by_reason) == ([], left_out)
    assert images.is_unlabelled == ("cls" not in names)


def test_images_beside_tars_are_lost(tmp_path: Path) -> None:
    write_tar(tmp_path / "d/a.tar", samples(2))
    assert not open_images(str(tmp_path / "d")).left_out
    write_file(tmp_path / "d/cat/0.png", picture(0))
    with pytest.raises(DataError, match=r"images beside tars, .*: 1 \(e\.g\. cat/0\.png\)"):
        open_images(str(tmp_path / "d"))
    assert len(open_images(str(tmp_path / "d"), allow_left_out=True)) == 2


def field(text: str) -> bytes:
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
    "clutter that leads back": SOUND + header(".DS_Store", pax=field("size=-1536")) + END,
    "a name of a terabyte": header("x", 1 << 40, tarfile.GNUTYPE_LONGNAME) + header() + END,
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
