"""WebDataset tars, indexed before use: webdataset itself skips what it cannot read, here nothing may be lost."""

import glob
import tarfile
from pathlib import Path

from webdataset.shardlists import expand_urls
from webdataset.tariterators import base_plus_ext

from extract.datasets.image_set import DataError, ImageSet, Sample, read_class_names

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "ppm")
CLASS_NAMES = "classes.txt"  # beside the tars: one name a line, in the order of the labels


def webdataset_tars(source: str, classes: Path | None = None) -> ImageSet:
    """Images and classes of WebDataset tars: members `KEY.png` (or another image format) and `KEY.cls`, one integer.

    Args:
        source: a tar, a brace expansion (`train-{000..009}.tar`), a pattern (`train-*.tar`), or a folder of tars.
        classes: file of class names, one a line; `classes.txt` beside or above the tars by default, if it exists.

    Raises:
        DataError: no such tar.
    """
    tars = _tars(source)
    samples: list[Sample] = []
    problems: list[str] = []
    for tar in tars:
        found, problem = _index(tar)
        samples += found
        if problem:
            problems.append(problem)
    if classes is None:
        beside = [folder / CLASS_NAMES for folder in (tars[0].parent, tars[0].parent.parent)]
        classes = next((file for file in beside if file.exists()), None)
    return ImageSet(source, samples, read_class_names(classes) if classes else None, problems)


def _tars(source: str) -> list[Path]:
    if Path(source).is_dir():
        if inside := sorted(Path(source).glob("*.tar")):
            return inside
        raise DataError(f"there is no tar in {source!r}; expected files like {source}/train-000.tar")
    tars: list[Path] = []
    for url in expand_urls(source):
        matches = sorted(glob.glob(url)) if glob.has_magic(url) else [url]
        if not matches or not all(Path(m).is_file() for m in matches):
            raise DataError(
                f"there is no tar {url!r} (of {source!r}); check the path, the numbers in braces start and end inclusively"
            )
        tars += map(Path, matches)
    return tars


def _index(tar: Path) -> tuple[list[Sample], str | None]:
    """Samples of one tar in its order, and what is wrong with the tar. Nothing is unpacked."""
    groups: dict[str, dict[str, tuple[int, int]]] = {}
    problem = None
    size = tar.stat().st_size
    if size == 0:
        return [], f"{tar} is empty (0 bytes); write it again"
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                key, extension = base_plus_ext(member.name)
                if member.isdir() or key is None:
                    continue
                if not member.isreg():
                    problem = problem or f"{tar}: member {member.name!r} is a link or device, expected a file"
                    continue
                if member.offset_data + member.size > size:
                    end = member.offset_data + member.size
                    problem = f"{tar} is truncated: {member.name!r} ends at byte {end}, the file at {size}"
                    break
                members = groups.setdefault(key, {})
                if extension.lower() in members:
                    problem = problem or f"{tar}: member {member.name!r} stands twice; ids must be unique"
                    continue
                members[extension.lower()] = (member.offset_data, member.size)
            problem = problem or _end(tar, archive.offset, len(groups))
    except (tarfile.TarError, OSError, EOFError) as error:
        problem = f"{tar} is not a whole tar: {error}"
    samples = [_sample(tar, key, members) for key, members in groups.items()]
    found = [sample for sample in samples if sample is not None]
    if problem is None and not found:
        problem = f"{tar} has no images; expected members like KEY.png and KEY.cls"
    return found, problem


def _end(tar: Path, offset: int, n_samples: int) -> str | None:
    """What is wrong behind the last member, which ends at `offset`. A whole tar closes with zeros, at least one block.

    tarfile is content without it, so a tar that was cut between two members looks fine to it.
    """
    with tar.open("rb") as file:
        file.seek(offset)
        if file.read(512) != bytes(512):
            return f"{tar} is truncated: it has no end-of-archive marker after {n_samples} samples"
        while block := file.read(1 << 20):
            if block.strip(b"\0"):
                return f"{tar} goes on behind its end-of-archive marker (byte {offset}), as tars joined by cat do; split it"
    return None


def _sample(tar: Path, key: str, members: dict[str, tuple[int, int]]) -> Sample | None:
    images = [extension for extension in members if extension in IMAGE_EXTENSIONS]
    if not images:
        if "cls" in members:
            offset, size = members["cls"]
            return Sample(key, None, tar, offset, 0, f"has a label but no image (members: {', '.join(sorted(members))})")
        return None
    label, problem = None, "has no label (expected a member .cls with an integer)"
    if "cls" in members:
        offset, size = members["cls"]
        text = Sample(key, None, tar, offset, size).read().decode("ascii", "replace").strip()
        if text.isdecimal() and int(text) < 2**31:
            label, problem = int(text), ""
        else:
            problem = f"has label {text[:40]!r}, expected an integer from 0"
    offset, size = members[images[0]]
    return Sample(key, label, tar, offset, size, problem or None)
