"""Where the members of a WebDataset tar are: read once, so that every image has its row and can be read alone."""

import errno
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import xxhash

from extract.datasets.reading import patiently
from extract.datasets.remote import RemoteFile
from extract.datasets.sample import IMAGE_EXTENSIONS, Sample
from store.format.classes import whole_number

LABEL_NBYTES = 1 << 10  # at most, of an integer


@dataclass(frozen=True)
class Member:
    """A member of a sample; `text` of a label, `digest` of the image in a remote tar, whose bytes are read anyway."""

    offset: int
    size: int
    text: str = ""
    digest: bytes | None = None


def index_tar(tar: Path | RemoteFile) -> tuple[list[Sample], str | None]:
    """Samples of one tar in its order, and what is wrong with the tar. Nothing is unpacked.

    Of a local tar the headers and the labels are read; a remote one is read from end to end, and its images' digests are
    computed meanwhile: reading them again one by one would take a request each.

    Raises:
        BeyondClsError: a tar that cannot be read, which says nothing about its images.
    """
    if isinstance(tar, Path):
        groups, problem = patiently(lambda: _local_groups(tar), str(tar))
    else:
        groups, problem = tar.read_with(lambda stream: _groups(tar, stream))
    samples = [_sample(tar, key, members) for key, members in groups.items()]
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
    """Members by key and extension, and what is wrong with the tar."""
    from webdataset.tariterators import base_plus_ext  # it imports torch, for which other forms need not wait

    groups: dict[str, dict[str, Member]] = {}
    problem = None
    if (size := stream.seek(0, 2)) == 0:
        return groups, f"{tar} is empty (0 bytes); write it again"
    stream.seek(0)
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it keeps all members, and there may be millions
                key, extension = base_plus_ext(member.name)
                if member.isdir() or key is None:
                    continue
                if not member.isreg():
                    problem = problem or f"{tar}: member {member.name!r} is a link or device, expected a file"
                    continue
                if member.offset_data + member.size > size:
                    end = member.offset_data + member.size
                    return groups, f"{tar} is truncated: {member.name!r} ends at byte {end}, the file at {size}"
                members = groups.setdefault(key, {})
                if extension.lower() in members:
                    problem = problem or f"{tar}: member {member.name!r} appears twice; ids must be unique"
                    continue
                members[extension.lower()] = _member(stream, member, extension.lower(), isinstance(tar, RemoteFile))
            problem = problem or _end(tar, stream, archive.offset, len(groups))
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and (isinstance(tar, RemoteFile) or error.errno != errno.EINVAL):
            raise  # the disk's or the network's fault; EINVAL is that of a header, which leads to an impossible place
        problem = f"{tar} is not a whole tar: {error}"
    return groups, problem


def _member(stream: IO[bytes], member: tarfile.TarInfo, extension: str, digested: bool) -> Member:
    """What is needed of a member. tarfile seeks before it reads the next header, so the stream may be moved."""
    offset, size = member.offset_data, member.size
    if extension == "cls":
        stream.seek(offset)
        return Member(offset, size, text=stream.read(min(size, LABEL_NBYTES)).decode("ascii", "replace").strip())
    if digested and extension in IMAGE_EXTENSIONS:
        stream.seek(offset)
        return Member(offset, size, digest=xxhash.xxh3_128_digest(stream.read(size)))
    return Member(offset, size)


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


def _sample(tar: Path | RemoteFile, key: str, members: Mapping[str, Member]) -> Sample | None:
    images = [extension for extension in members if extension in IMAGE_EXTENSIONS]
    label = members.get("cls")
    if not images:
        if label is None:
            return None
        problem = f"has a label but no image (members: {', '.join(sorted(members))})"
        return Sample(key, None, tar, label.offset, 0, problem)
    image = members[images[0]]
    if label is None:
        labels, problem = None, "has no label (expected a member .cls with an integer)"
    elif (number := whole_number(label.text)) is not None and 0 <= number < 2**31:
        labels, problem = (number,), ""
    else:
        labels, problem = None, f"has label {label.text[:40]!r}, expected an integer from 0"
    return Sample(key, labels, tar, image.offset, image.size, problem or None, digest=image.digest)
