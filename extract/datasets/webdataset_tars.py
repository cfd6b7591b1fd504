"""WebDataset tars, indexed before use: webdataset itself skips what it cannot read, which must not happen here."""

import glob
import io
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from extract.datasets.form import Example, Plain
from extract.datasets.formats import is_image
from extract.datasets.gathering import BESIDE_TARS, BROKEN, LeftOut, walk
from extract.datasets.image_set import ImageSet, read_class_names
from extract.datasets.opening import made_of
from extract.datasets.remote import RemoteFile
from extract.datasets.sample import DataError, Sample
from extract.datasets.tar_index import UNLABELLED, index_tar

CLASS_NAMES = "classes.txt"  # beside the tars: one name a line, in the order of the labels
PIPE = "pipe:"


def webdataset_tars(source: str, classes: Path | None = None) -> ImageSet:
    """Images and classes of WebDataset tars: members `KEY.png` (or another image format) and `KEY.cls`, one integer.

    Where no image has a label, it is a set without labels.

    Each tar is indexed once, so that rows are fixed and every image can be read alone: a remote one is read from end to end
    for that, and then image by image. A pipe
    cannot be read twice: what its command writes is copied to a temporary file (in $TMPDIR), which is removed with the
    ImageSet.

    Args:
        source: a tar, a brace expansion (`train-{000..009}.tar`), a pattern (`train-*.tar`), or a folder of tars; each
            local, at an address that fsspec reaches (`s3://…`, `https://…`; patterns and folders not over HTTP), or
            `pipe:COMMAND`. COMMAND is run by the shell: let a source come from the command line or from your own parameters,
            never from a file that somebody else wrote.
        classes: file of class names, one a line; `classes.txt` beside or above the tars by default, if it exists.

    Raises:
        DataError: no such tar, or a command that fails.
        BeyondClsError: a remote place that cannot be reached.
    """
    pipes = TemporaryDirectory(prefix="beyondcls-") if source.startswith(PIPE) else None
    tars = _tars(source, Path(pipes.name) if pipes else None)
    samples: list[Sample] = []
    problems: list[str] = []
    left_out = LeftOut()
    for tar in tars:
        tar_samples, problem = index_tar(tar, left_out)
        samples += tar_samples
        if problem:
            problems.append(problem)
    if "://" not in source and not pipes and Path(source).is_dir():
        for found in walk(Path(source)):
            if is_image(found.name) and found.reason in (None, BROKEN):
                left_out.add(BESIDE_TARS, found.name)
    if all(sample.problem == UNLABELLED for sample in samples):
        samples = [replace(sample, problem=None) for sample in samples]
    names: Path | RemoteFile | None = classes
    if names is None and not pipes:
        places = [folder / CLASS_NAMES for folder in (tars[0].parent, tars[0].parent.parent)]
        made_of(*(place for place in places if isinstance(place, Path)))
        names = next((place for place in places if place.exists()), None)
    class_names = read_class_names(names) if names else None
    return ImageSet(source, samples, class_names, problems, resources=pipes, left_out=left_out)


def _tars(source: str, pipes: Path | None) -> Sequence[Path | RemoteFile]:
    from webdataset.shardlists import expand_urls

    folder = RemoteFile(source) if "://" in source else Path(source)
    if isinstance(folder, Path):
        made_of(folder)
    if pipes is None and "::" not in source and folder.is_dir():
        folder_tars: Sequence[Path | RemoteFile] = sorted(folder.glob("*.tar"), key=str)
        if folder_tars:
            return folder_tars
        raise DataError(f"there is no tar in {source!r}; expected files like {source}/train-000.tar")
    tars: list[Path | RemoteFile] = []
    for url in expand_urls(source):
        matches: Sequence[Path | RemoteFile]
        if pipes is not None:
            matches = [_copy_pipe(url, pipes / f"pipe-{len(tars):05d}.tar")]
        elif "://" in url:
            remote = RemoteFile(url)
            matches = remote.glob() if glob.has_magic(url) and not url.startswith("http") else [remote]
        else:
            _made_of_pattern(url)
            matches = [Path(match) for match in sorted(glob.glob(url))] if glob.has_magic(url) else [Path(url)]
        if not matches or not all(m.is_file() for m in matches):
            raise DataError(
                f"there is no tar {url!r} (of {source!r}); check the path, the numbers in braces start and end inclusively"
            )
        tars += matches
    return tars


def _made_of_pattern(pattern: str) -> None:
    """Say that the tars depend on what is in the folders that a pattern leads to."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
        made_of(*glob.glob(pattern or "."))


def _copy_pipe(url: str, tar: Path) -> Path:
    """A file with the output of a command, which is the user's own: see `webdataset_tars`."""
    command = url.removeprefix(PIPE)
    # What keeps our own processes from importing from the working folder is not meant for those of the user.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    with tar.open("wb") as file:
        status = subprocess.run(command, shell=True, stdout=file, env=environment).returncode
    if status:
        raise DataError(f"the command of {url!r} ended with status {status}; try it in a shell: it must write a tar")
    return tar


def tar_file(members: Mapping[str, bytes]) -> bytes:
    """A tar, for examples."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


PPM = b"P6 2 2 255\n" + bytes(12)
EXAMPLE = Example(
    {
        "train-000.tar": partial(tar_file, {"b.ppm": PPM, "b.cls": b"1", "a.ppm": PPM, "a.cls": b"0"}),
        "train-001.tar": partial(tar_file, {"c.ppm": PPM, "c.cls": b"1"}),
        CLASS_NAMES: "ape\nbee\n",
    },
    ("ape", "bee"),
    {"": {"b": ("bee",), "a": ("ape",), "c": ("bee",)}},
    listed=False,
)
TARS = Plain(webdataset_tars, EXAMPLE, is_made_of_states=True)
