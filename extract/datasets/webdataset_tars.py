"""WebDataset tars, indexed before use: webdataset itself skips what it cannot read, which must not happen here."""

import errno
import glob
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

import xxhash

from extract.datasets.form import Plain
from extract.datasets.gathering import BESIDE_TARS, BROKEN, CLUTTER, FURTHER, OTHER, UNREADABLE, LeftOut, is_clutter, walk
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import lines
from extract.datasets.pixels import IMAGE_EXTENSIONS, UNREAD, extension, is_image, is_picture, missing_reader
from extract.datasets.reading import RemoteFile, made_of, patiently
from extract.datasets.sample import DataError, Sample
from store import BeyondClsError
from store.format.classes import whole_number
from store.places.disk import UntrustedHeader

CLASS_NAMES = "classes.txt"  # next to the tars: one name a line, in the order of the labels
PIPE = "pipe:"
LABEL_NBYTES = 1 << 10  # at most, of an integer
UNLABELLED = "has no label (expected a member .cls with an integer)"
NAME_LENGTH = 4096  # at most, as Linux has it
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}
Tar = Path | RemoteFile


def webdataset_tars(source: str, classes: Path | None = None) -> ImageSet:
    """Images and classes of WebDataset tars: members `KEY.png` (or another image format) and `KEY.cls`, one integer.

    Where no image has a label, it is a set without labels.

    Each tar is indexed once, so that rows are fixed and every image can be read alone: a remote one is read from end to end
    for that, and then image by image. A pipe cannot be read twice: what its command writes is copied to a temporary file (in
    $TMPDIR), which is removed with the ImageSet.

    The source is a tar, a brace expansion (`train-{000..009}.tar`), a pattern (`train-*.tar`), or a folder of tars; each local,
    at an address that fsspec reaches (`s3://…`, `https://…`; patterns and folders not over HTTP), or `pipe:COMMAND`. COMMAND is
    run by the shell: let a source come from the command line or from your own parameters, never from a file that somebody else
    wrote. Classes are named in `classes.txt` next to or above the tars by default, if it exists.
    """
    pipes = TemporaryDirectory(prefix="beyondcls-") if source.startswith(PIPE) else None
    tars = _open_tars(source, Path(pipes.name) if pipes else None)
    left_out = LeftOut()
    indexed = [_index_tar(tar, left_out) for tar in tars]
    samples = [sample for of_tar, _ in indexed for sample in of_tar]
    problems = [problem for _, problem in indexed if problem]
    if "://" not in source and not pipes and Path(source).is_dir():
        for found in walk(Path(source)):
            if is_image(found.name) and found.reason in (None, BROKEN):
                left_out.add(BESIDE_TARS, found.name)
    if all(sample.problem == UNLABELLED for sample in samples):
        samples = [replace(sample, problem=None) for sample in samples]
    names: Tar | None = classes
    if names is None and not pipes:
        places = [folder / CLASS_NAMES for folder in (tars[0].parent, tars[0].parent.parent)]
        made_of(*(place for place in places if isinstance(place, Path)))
        names = next((place for place in places if place.exists()), None)
    class_names = lines(names) if names else None
    return ImageSet(source, samples, class_names, problems, resources=pipes, left_out=left_out)


def _open_tars(source: str, pipes: Path | None) -> Sequence[Tar]:
    from webdataset.shardlists import expand_urls

    folder = RemoteFile(source) if "://" in source else Path(source)
    if isinstance(folder, Path):
        made_of(folder)
    tars: list[Tar] = []
    if pipes is None and "::" not in source and folder.is_dir():
        tars += sorted(folder.glob("*.tar"), key=str)
        if not tars:
            raise DataError(f"there is no tar in {source!r}; expected files like {source}/train-000.tar")
        return tars
    for url in expand_urls(source):
        matches: Sequence[Tar]
        if pipes is not None:
            matches = [_copy_pipe(url, pipes / f"pipe-{len(tars):05d}.tar")]
        elif "://" in url:
            remote = RemoteFile(url)
            matches = remote.glob() if glob.has_magic(url) and not url.startswith("http") else [remote]
        else:
            above = url
            while glob.has_magic(above):  # the tars depend on what is in the folders that a pattern leads to
                above = os.path.dirname(above)
                made_of(*glob.glob(above or "."))
            matches = [Path(match) for match in sorted(glob.glob(url))] if glob.has_magic(url) else [Path(url)]
        if not matches or not all(m.is_file() for m in matches):
            raise DataError(f"there is no tar {url!r} (of {source!r}); check the path, the numbers in braces are inclusive")
        tars += matches
    return tars


def _copy_pipe(url: str, tar: Path) -> Path:
    """A file with the output of a command, which is the user's own: see `webdataset_tars`."""
    # What keeps our own processes from importing from the working folder is not meant for those of the user.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    with tar.open("wb") as file:
        status = subprocess.run(url.removeprefix(PIPE), shell=True, stdout=file, env=environment).returncode
    if status:
        raise DataError(f"the command of {url!r} ended with status {status}; try it in a shell: it must write a tar")
    return tar


class TarMember(NamedTuple):
    """A member of a sample; `text` of a label, `digest` of the image in a remote tar, whose bytes are read anyway."""

    name: str
    offset: int
    size: int
    is_image: bool = False
    text: str = ""
    digest: bytes | None = None


def _index_tar(tar: Tar, left_out: LeftOut) -> tuple[list[Sample], str | None]:
    """Samples of one tar in its order, and what is wrong with the tar. Nothing is unpacked.

    The key of a sample ends at the first dot of a name, as webdataset has it; unless what follows has dots, too, and an image
    and a label of its own (`a.v2.png`, `a.v2.cls`), or nothing is called by the shorter key alone. Other pictures
    of a key (`a.mask.png`) are left out.

    Of a local tar the headers and the labels are read; a remote one is read from end to end, and its images' digests are
    computed meanwhile: reading them again one by one would take a request each.
    """
    if isinstance(tar, Path):
        made_of(tar)

        def local() -> tuple[dict[str, dict[str, TarMember]], str | None]:
            with tar.open("rb") as stream:
                return _group_members(tar, stream)

        groups, problem = patiently(local, str(tar))
    else:
        groups, problem = tar.read_with(lambda stream: _group_members(tar, stream))
    for name in groups.pop(CLUTTER.words, {}):
        left_out.add(CLUTTER, name)
    parts = [part for key, members in groups.items() for part in _split_into_samples(key, members)]
    parts.sort(key=lambda part: min(member.offset for member in part[1].values()))
    images = [sample for part in parts if (sample := _sample(tar, *part, left_out)) is not None]
    if images and isinstance(tar, RemoteFile):
        images[0].read()  # a place that returns whole files only is noticed now
    if problem is None and not images:
        problem = f"{tar} has no images; expected members like KEY.png and KEY.cls"
    return images, problem


def _group_members(tar: Tar, stream: IO[bytes]) -> tuple[dict[str, dict[str, TarMember]], str | None]:
    """Members by webdataset's key and extension, and what is wrong with the tar.

    The extension is empty where a name has none. Clutter is under a key of its own, CLUTTER's words, by name.
    """
    from webdataset.tariterators import base_plus_ext  # it imports torch, for which other forms need not wait

    groups: dict[str, dict[str, TarMember]] = {}
    problem = None
    if (size := stream.seek(0, 2)) == 0:
        return groups, f"{tar} is empty (0 bytes); write it again"
    stream.seek(0)
    head = stream.read(8)
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
                    groups.setdefault(CLUTTER.words, {})[member.name] = TarMember(member.name, member.offset_data, member.size)
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
                members[end] = _read_member(stream, member, end, isinstance(tar, RemoteFile))
            # A whole tar ends with zeros, at least one block; tarfile accepts one that was cut between two members.
            stream.seek(archive.offset)
            if stream.read(512) != bytes(512):
                problem = problem or f"{tar} is truncated: it has no end-of-archive marker after {len(groups)} samples"
            while problem is None and (block := stream.read(1 << 20)):
                if block.strip(b"\0"):
                    place = f"(byte {archive.offset})"
                    problem = f"{tar} goes on behind its end-of-archive marker {place}, as tars joined by cat do; split it"
    except BeyondClsError:
        raise
    # Beside its own errors, tarfile raises those of Python for fields that contradict themselves.
    except (tarfile.TarError, EOFError, OSError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        if isinstance(error, OSError) and (isinstance(tar, RemoteFile) or error.errno != errno.EINVAL):
            raise  # the disk's or the network's fault; EINVAL is that of a header, which leads to an impossible place
        problem = f"{tar} is not a whole tar: {error}"
    return groups, problem


def _read_member(stream: IO[bytes], member: tarfile.TarInfo, end: str, digested: bool) -> TarMember:
    """What is needed of a member. tarfile seeks before it reads the next header, so the stream may be moved."""

    def head(nbytes: int) -> bytes:
        stream.seek(member.offset_data)
        return stream.read(min(member.size, nbytes))

    place = member.name, member.offset_data, member.size
    if end.rpartition(".")[2] == "cls":
        return TarMember(*place, text=head(LABEL_NBYTES).decode("ascii", "replace").strip())
    is_taken = is_picture(member.name, head)
    return TarMember(*place, is_taken, digest=xxhash.xxh3_128_digest(head(member.size)) if is_taken and digested else None)


def _split_into_samples(key: str, members: Mapping[str, TarMember]) -> list[tuple[str, dict[str, TarMember]]]:
    """The samples among the members that share webdataset's key; what belongs to none stays with the key itself."""
    rest = {end: member for end, member in members.items() if "." not in end}
    is_called = any(member.is_image or end == "cls" for end, member in rest.items())
    longer: dict[str, dict[str, TarMember]] = {}
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


def _sample(tar: Tar, key: str, members: Mapping[str, TarMember], left_out: LeftOut) -> Sample | None:
    images = [end for end, member in members.items() if member.is_image and "." not in end]
    images.sort(key=lambda end: end not in IMAGE_EXTENSIONS)
    label = members.get("cls")
    if not images:
        if label is None:
            for member in members.values():
                left_out.add(UNREADABLE if extension(member.name) in UNREAD else OTHER, member.name)
            return None
        return Sample(key, None, tar, label.offset, 0, f"has a label but no image (members: {', '.join(sorted(members))})")
    image = members[images[0]]
    for member in members.values():
        if member.is_image and member is not image:
            left_out.add(FURTHER, member.name)
    labels: tuple[int, ...] | None = None
    problem: str | None = UNLABELLED
    if label is not None:
        number = whole_number(label.text)
        problem = f"has label {label.text[:40]!r}, expected an integer from 0"
        if number is not None and 0 <= number < 2**31:
            labels, problem = (number,), missing_reader(image.name) or (None if image.size else "is empty (0 bytes)")
    return Sample(key, labels, tar, image.offset, image.size, problem, digest=image.digest)


TARS = Plain(webdataset_tars, is_made_of_states=True)
