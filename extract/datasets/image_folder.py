"""A folder with one subfolder per class, as torchvision's ImageFolder reads it."""

from collections import Counter
from pathlib import Path

from extract.datasets.form import Example, Plain, pictures
from extract.datasets.image_set import ImageSet, read_class_names
from extract.datasets.sample import DataError, Sample, is_image


def image_folder(source: str, classes: Path | None = None) -> ImageSet:
    """Images in `source/CLASS/…/NAME.jpg`; labels number the class folders in alphabetical order.

    So 10 comes before 2, as for torchvision; probes compare the names of classes, not their order.

    Args:
        source: the folder.
        classes: file of class names in the order of labels, if some class folder is missing in this split.

    Raises:
        DataError: no such folder, or no class folders.
    """
    root = Path(source)
    if not root.is_dir():
        raise DataError(f"there is no folder {source!r}")
    folders = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise DataError(f"{source} has no class folders; expected {source}/CLASS/NAME.jpg, or tars")
    names = read_class_names(classes) if classes else folders
    n_named = Counter(names)
    if twice := [folder for folder in folders if n_named[folder] > 1]:
        raise DataError(f"{classes} names {twice[0]!r} twice, so the label of that class folder is not known; name it once")
    if extra := sorted(set(folders) - set(names)):
        raise DataError(f"{source} has class folders that {classes} does not name: {', '.join(extra[:5])}")
    label = {name: i for i, name in enumerate(names)}
    samples = []
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and is_image(file.name):
                relative = file.relative_to(root).with_suffix("").as_posix()
                samples.append(Sample(relative, (label[folder],), file, 0, file.stat().st_size))
    loose = [f for f in sorted(root.iterdir()) if f.is_file() and is_image(f.name)]
    samples += [Sample(f.stem, None, f, 0, f.stat().st_size, "has no label (it lies in no class folder)") for f in loose]
    return ImageSet(source, samples, names)


EXAMPLE = Example(
    pictures("cat", "2.png") | pictures("bee", "deep/0.png") | pictures("ape", "1.png", "0.JPEG"),
    ("ape", "bee", "cat"),
    {"": {"ape/0": ("ape",), "ape/1": ("ape",), "bee/deep/0": ("bee",), "cat/2": ("cat",)}},
    listed=False,
)
FOLDER = Plain(image_folder, EXAMPLE)
