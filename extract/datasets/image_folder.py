"""A folder with one subfolder per class, as torchvision's ImageFolder reads it."""

from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

from extract.datasets.foreign import foreign_file, foreign_folder
from extract.datasets.form import Example, Plain, pictures
from extract.datasets.formats import image_id, missing_reader
from extract.datasets.gathering import BROKEN_FOLDER, Found, LeftOut, broken_link, gather, is_clutter
from extract.datasets.image_set import ImageSet, read_class_names
from extract.datasets.opening import made_of
from extract.datasets.sample import DataError, Sample


def image_folder(source: str, classes: Path | None = None) -> ImageSet:
    """Images in `source/CLASS/…/NAME.jpg`; labels number the class folders in alphabetical order.

    So 10 comes before 2, as for torchvision; probes compare the names of classes, not their order.
    Links to folders are followed. A folder whose images are in no class folder is a set without labels.

    Args:
        source: the folder.
        classes: file of class names in the order of labels, if some class folder is missing in this split.

    Raises:
        DataError: no such folder, no images, or a class folder that is not named.
    """
    root = Path(source)
    if not root.is_dir():
        raise DataError(foreign_file(source))
    left_out = LeftOut()
    images = gather(root, left_out)
    if not images and (described := foreign_folder(root)):
        beside = f" (left out: {left_out})" if left_out else ""
        raise DataError(f"{source} has no images; expected {source}/CLASS/NAME.jpg, or tars; {described}{beside}")
    folders = sorted(p.name for p in root.iterdir() if _is_class(p))
    if images and all("/" not in found.name for found in images):
        unlabelled = (_sample(root, found, None) for found in images)
        return ImageSet(source, unlabelled, read_class_names(classes) if classes else None, left_out=left_out)
    names = read_class_names(classes) if classes else folders
    n_named = Counter(names)
    if twice := [folder for folder in folders if n_named[folder] > 1]:
        raise DataError(f"{classes} names {twice[0]!r} twice, so the label of that class folder is not known; name it once")
    if extra := sorted(set(folders) - set(names)):
        raise DataError(f"{source} has class folders that {classes} does not name: {', '.join(extra[:5])}")
    label = {name: i for i, name in enumerate(names)}
    by_folder: dict[str, list[Found]] = {}
    for found in images:
        by_folder.setdefault(found.name.partition("/")[0] if "/" in found.name else "", []).append(found)
    named = (_sample(root, found, label[folder]) for folder in folders for found in by_folder.get(folder, ()))
    loose = (_sample(root, found, None) for found in by_folder.get("", ()))
    problem = "has no label (it lies in no class folder)"
    samples = chain(named, (replace(sample, problem=sample.problem or problem) for sample in loose))
    return ImageSet(source, samples, names, left_out=left_out)


def _is_class(entry: Path) -> bool:
    """Whether an entry of the folder is a class; so is a link that leads nowhere, or the labels of others would change."""
    if entry.name.startswith(".") or is_clutter(entry.name):
        return False
    return entry.is_dir() or (entry.is_symlink() and not entry.exists() and broken_link(entry.name) is BROKEN_FOLDER)


def _sample(root: Path, found: Found, label: int | None) -> Sample:
    if not found.size:
        made_of(root / found.name)
    problem = missing_reader(found.name) or (None if found.size else "is empty (0 bytes)")
    labels = None if label is None else (label,)
    return Sample(image_id(found.name), labels, root / found.name, 0, found.size, problem)


EXAMPLE = Example(
    pictures("cat", "2.png") | pictures("bee", "deep/0.png") | pictures("ape", "1.png", "0.JPEG"),
    ("ape", "bee", "cat"),
    {"": {"ape/0": ("ape",), "ape/1": ("ape",), "bee/deep/0": ("bee",), "cat/2": ("cat",)}},
    listed=False,
)
FOLDER = Plain(image_folder, EXAMPLE, is_made_of_states=True)
