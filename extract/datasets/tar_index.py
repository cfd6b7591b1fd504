"""Where the members of a WebDataset tar are: read once, so that every image has its row and can be read alone."""

import errno
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import xxhash

from extract.datasets.formats import (
    HEAD_NBYTES,
    IMAGE_EXTENSIONS,
    SIDECARS,
    UNREAD,
    begins_as_image,
    extension,
    is_image,
    missing_reader,
)
from extract.datasets.gathering import CLUTTER, FURTHER, OTHER, UNREADABLE, LeftOut, is_clutter
from extract.datasets.opening import made_of
from extract.datasets.reading import patiently
from extract.datasets.remote import RemoteFile
from extract.datasets.sample import Sample
from store import BeyondClsError
from store.format.classes import whole_number
from store.places.disk import UntrustedHeader

LABEL_NBYTES = 1 << 10  # at most, of an integer
UNLABELLED = "has no label (expected a member .cls with an integer)"
NAME_LENGTH = 4096  # at most, as Linux has it
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}


@dataclass(frozen=True)
class Member:
    """A member of a sample; `text` of a label, `digest` of the image in a remote tar, whose bytes are read anyway."""

    name: str
    offset: int
    size: int
    is_image: bool = False
    text: str = ""
    digest: bytes | None = None


def index_tar(tar: Path | RemoteFile, left_out: LeftOut) -> tuple[list[Sample], str | None]:
    """Samples of one tar in its order, and what is wrong with the tar. Nothing is unpacked.

    The key of a sample ends at the first dot of a name, as webdataset has it; unless what follows has dots, too, and an image
    and a label of its own (`a.v2.png`, `a.v2.cls`), or nothing is called by the shorter key alone. Pictures beside the image
    of a key (`a.mask.png`) are left out.

    Of a local tar the headers and the labels are read; a remote one is read from end to end, and its images' digests are
    computed meanwhile: reading them again one by one would take a request each.

    Raises:
        BeyondClsError: a tar that cannot be read, which says nothing about its images.
    """
    if isinstance(tar, Path):
        made_of(tar)
        groups, problem = patiently(lambda: _local_groups(tar), str(tar))
    else:
        groups, problem = tar.read_with(lambda stream: _groups(tar, stream))
    for member in groups.pop(CLUTTER.words, {}).values():
        left_out.add(CLUTTER, member.name)
    parts = [part for key, members in groups.items() for part in _split(key, members)]
    parts.sort(key=lambda part: min(member.offset for member in part[1].values()))
    samples = [_sample(tar, key, members, left_out) for key, members in parts]
    images = [sample for sample in samples if sample is not None]
    if images and isinstance(tar, RemoteFile):
        images[0].read()  # a place that returns whole files only is noticed now
    if problem is None and not images:
        problem = f"{tar} has no images; expected members like KEY.png and KEY.cls"
    return images, problem


def _local_groups(tar: Path) -> tuple[dict[str, dict[str, Member]], str | None]:
    with tar.open("rb") as stream:
        return _groups(tar, stream)


def _groups(tar: Path | RemoteFile, stream: IO[bytes]) -> tuple[dict[str, dict[str, Member]], str | None]:
    """Members by webdataset's key and extension, and what is wrong with the tar.

    The extension is empty where a name has none. Clutter is under a key of its own, CLUTTER's words, by name.
    """
    from webdataset.tariterators import base_plus_ext  # it imports torch, for which other forms need not wait

    groups: dict[str, dict[str, Member]] = {}
    problem = None
    if (size := stream.seek(0, 2)) == 0:
        return groups, f"{tar} is empty (0 bytes); write it again"
    stream.seek(0)
    head = stream.read(HEAD_NBYTES)
    stream.seek(0)
    if kind := next((kind for magic, kind in COMPRESSED.items() if head.startswith(magic)), None):
        return groups, f"{tar} is not a whole tar: it is compressed ({kind}), and images are read from the middle; unpack it"
    try:
        with tarfile.open(fileobj=stream, mode="r:", tarinfo=UntrustedHeader) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it keeps all members, and there may be millions
                if member.size < 0 or len(member.name) > NAME_LENGTH:  # by further fields
                    return groups, f"{tar} is not a whole tar: {member.name[:80]!r} has {member.size} bytes"
                key, end = base_plus_ext(member.name)
                if member.isdir():
                    continue
                if any(map(is_clutter, member.name.split("/"))):
                    aside = groups.setdefault(CLUTTER.words, {})
                    aside[member.name] = Member(member.name, member.offset_data, member.size)
                    continue
                if key is None:
                    key, end = member.name, ""
                    if not member.isreg():
                        continue
                if not member.isreg():
                    problem = problem or f"{tar}: member {member.name!r} is a link or device, expected a file"
                    continue
                if member.offset_data + member.size > size:
                    end = member.offset_data + member.size
                    return groups, f"{tar} is truncated: {member.name!r} ends at byte {end}, the file at {size}"
                members = groups.setdefault(key, {})
                middle, dot, last = end.rpartition(".")
                end = f"{middle}{dot}{last.lower()}"
                if end in members:
                    problem = problem or f"{tar}: member {member.name!r} appears twice; ids must be unique"
                    continue
                members[end] = _member(stream, member, end, isinstance(tar, RemoteFile))
            problem = problem or _end(tar, stream, archive.offset, len(groups))
    except BeyondClsError:
        raise
    # Beside its own errors, tarfile raises those of Python for fields that contradict themselves.
    except (tarfile.TarError, EOFError, OSError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        if isinstance(error, OSError) and (isinstance(tar, RemoteFile) or error.errno != errno.EINVAL):
            raise  # the disk's or the network's fault; EINVAL is that of a header, which leads to an impossible place
        problem = f"{tar} is not a whole tar: {error}"
    return groups, problem


def _member(stream: IO[bytes], member: tarfile.TarInfo, end: str, digested: bool) -> Member:
    """What is needed of a member. tarfile seeks before it reads the next header, so the stream may be moved."""
    name, offset, size = member.name, member.offset_data, member.size
    if end.rpartition(".")[2] == "cls":
        stream.seek(offset)
        return Member(name, offset, size, text=stream.read(min(size, LABEL_NBYTES)).decode("ascii", "replace").strip())
    is_picture = is_image(name)
    if not is_picture and extension(name) not in SIDECARS | UNREAD:
        stream.seek(offset)
        is_picture = begins_as_image(stream.read(min(size, HEAD_NBYTES)))
    if not is_picture or not digested:
        return Member(name, offset, size, is_picture)
    stream.seek(offset)
    return Member(name, offset, size, is_picture, digest=xxhash.xxh3_128_digest(stream.read(size)))


def _split(key: str, members: Mapping[str, Member]) -> list[tuple[str, dict[str, Member]]]:
    """The samples among the members that share webdataset's key; what belongs to none stays with the key itself."""
    rest = {end: member for end, member in members.items() if "." not in end}
    is_called = any(member.is_image or end == "cls" for end, member in rest.items())
    longer: dict[str, dict[str, Member]] = {}
    for end, member in members.items():
        if "." in end:
            middle, _, last = end.rpartition(".")
            longer.setdefault(middle, {})[last] = member
    parts = []
    for middle, of_key in longer.items():
        if any(member.is_image for member in of_key.values()) and ("cls" in of_key or not is_called):
            parts.append((f"{key}.{middle}", of_key))
        else:
            rest |= {f"{middle}.{last}": member for last, member in of_key.items()}
    return [(key, rest), *parts] if rest else parts


def _end(tar: Path | RemoteFile, stream: IO[bytes], offset: int, n_samples: int) -> str | None:
    """What is wrong after the last member, which ends at `offset`. A whole tar ends with zeros, at least one block.

    tarfile accepts a tar without it, so one that was cut between two members looks fine to it.
    """
    stream.seek(offset)
    if stream.read(512) != bytes(512):
        return f"{tar} is truncated: it has no end-of-archive marker after {n_samples} samples"
    while block := stream.read(1 << 20):
        if block.strip(b"\0"):
            return f"{tar} goes on behind its end-of-archive marker (byte {offset}), as tars joined by cat do; split it"
    return None


def _sample(tar: Path | RemoteFile, key: str, members: Mapping[str, Member], left_out: LeftOut) -> Sample | None:
    images = [end for end, member in members.items() if member.is_image and "." not in end]
    images.sort(key=lambda end: end not in IMAGE_EXTENSIONS)
    label = members.get("cls")
    if not images:
        if label is None:
            for member in members.values():
                left_out.add(UNREADABLE if extension(member.name) in UNREAD else OTHER, member.name)
            return None
        problem = f"has a label but no image (members: {', '.join(sorted(members))})"
        return Sample(key, None, tar, label.offset, 0, problem)
    image = members[images[0]]
    for member in members.values():
        if member.is_image and member is not image:
            left_out.add(FURTHER, member.name)
    if label is None:
        labels, problem = None, UNLABELLED
    elif (number := whole_number(label.text)) is not None and 0 <= number < 2**31:
        labels, problem = (number,), ""
    else:
        labels, problem = None, f"has label {label.text[:40]!r}, expected an integer from 0"
    problem = problem or missing_reader(image.name) or ("" if image.size else "is empty (0 bytes)")
    return Sample(key, labels, tar, image.offset, image.size, problem or None, digest=image.digest)
