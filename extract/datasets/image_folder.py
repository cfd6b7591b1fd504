"""A folder with one subfolder per class, as torchvision's ImageFolder reads it; or what is there in place of images."""

from collections import Counter
from itertools import chain, islice
from pathlib import Path

from extract.datasets.form import Plain
from extract.datasets.gathering import BROKEN_FOLDER, Found, LeftOut, broken_link, gather, is_clutter
from extract.datasets.image_set import ImageSet, read_class_names
from extract.datasets.pixels import extension, image_id, is_image, missing_reader
from extract.datasets.reading import made_of
from extract.datasets.sample import DataError, Sample

EXPORT = "write its images as files, a folder a class (FOLDER/CLASS/NAME.png), or as WebDataset tars"
UNPACK = "unpack it, and name the folder"
LIST = "a list is read as a .csv with columns id, path and label; write it so"
# What is no image, and what to do with it, by extension of a file.
KINDS = {
    **dict.fromkeys(("zip", "7z", "rar"), ("an archive", UNPACK)),
    **dict.fromkeys(("gz", "tgz", "bz2", "xz", "zst"), ("compressed", f"{UNPACK}, or the tar that it is of")),
    "parquet": ("a table in Parquet", "name it, or the folder that it is in, without --form"),
    "arrow": ("a table of Hugging Face datasets", "name the folder that it is in, without --form"),
    "npz": ("a file of arrays", "name it, without --form"),
    **dict.fromkeys(("npy", "h5", "hdf5", "mat", "pkl", "pickle", "pt", "pth"), ("a file of arrays", EXPORT)),
    **dict.fromkeys(("tfrecord", "rec", "beton", "mdb", "lmdb", "sqlite", "db"), ("a database of another program", EXPORT)),
    **dict.fromkeys(("json", "jsonl", "txt", "tsv", "xlsx", "xls"), ("a text or table", LIST)),
    **dict.fromkeys(("mp4", "avi", "mov", "mkv", "webm"), ("a video", f"save its frames; {EXPORT}")),
}
HUGGING_FACE = {"dataset_info.json", "dataset_dict.json", "state.json"}
MOST_LOOKED_AT = 10_000  # files of a folder


def image_folder(source: str, classes: Path | None = None) -> ImageSet:
    """Images in `source/CLASS/…/NAME.jpg`; labels number the class folders in alphabetical order.

    So 10 comes before 2, as for torchvision; probes compare the names of classes, not their order.
    Links to folders are followed. A folder whose images are in no class folder is a set without labels. Names of classes are
    needed if some class folder is missing in this split.
    """
    root, left_out = Path(source), LeftOut()
    if not root.is_dir():
        raise DataError(_foreign_file(source))
    images = gather(root, left_out)
    if not images and (described := _foreign_folder(root)):
        beside = f" (left out: {left_out})" if left_out else ""
        raise DataError(f"{source} has no images; expected {source}/CLASS/NAME.jpg, or tars; {described}{beside}")
    folders = sorted(p.name for p in root.iterdir() if _is_class(p))
    names = read_class_names(classes) if classes else None
    by_folder: dict[str, list[Found]] = {}
    for found in images:
        by_folder.setdefault(found.name.partition("/")[0] if "/" in found.name else "", []).append(found)
    loose = by_folder.pop("", [])
    if loose and not by_folder:
        return ImageSet(source, (_sample(root, found, None) for found in loose), names, left_out=left_out)
    names = folders if names is None else names
    n_named = Counter(names)
    if twice := [folder for folder in folders if n_named[folder] > 1]:
        raise DataError(f"{classes} names {twice[0]!r} twice, so the label of that class folder is not known; name it once")
    if extra := sorted(set(folders) - set(names)):
        raise DataError(f"{source} has class folders that {classes} does not name: {', '.join(extra[:5])}")
    label = {name: (i,) for i, name in enumerate(names)}
    named = (_sample(root, found, label[folder]) for folder in folders for found in by_folder.get(folder, ()))
    others = (_sample(root, found, None, "has no label (it lies in no class folder)") for found in loose)
    return ImageSet(source, chain(named, others), names, left_out=left_out)


def _is_class(entry: Path) -> bool:
    """Whether an entry of the folder is a class; so is a link that leads nowhere, or the labels of others would change."""
    if entry.name.startswith(".") or is_clutter(entry.name):
        return False
    return entry.is_dir() or (entry.is_symlink() and not entry.exists() and broken_link(entry.name) is BROKEN_FOLDER)


def _sample(root: Path, found: Found, labels: tuple[int, ...] | None, problem: str | None = None) -> Sample:
    if not found.size:
        made_of(root / found.name)
        problem = "is empty (0 bytes)"
    problem = missing_reader(found.name) or problem
    return Sample(image_id(found.name), labels, root / found.name, 0, found.size, problem)


def _foreign_file(source: str) -> str:
    """Why a source that is no folder is not read, as the message of an error."""
    path = Path(source)
    if not path.exists():
        broken = ", only a link that leads nowhere; fetch what it leads to" if path.is_symlink() else ""
        return f"there is no folder {source!r}{broken}"
    otherwise = ("a file", f"expected tars, a folder with a folder per class, or a .csv; {EXPORT}")
    kind, remedy = KINDS.get(extension(path.name), otherwise)
    if is_image(path.name):
        kind, remedy = "a single image", "name the folder that it is in, or show it to a probe: beyondcls predict"
    return f"{source} is {kind}, not a set of images; {remedy}"


def _foreign_folder(root: Path) -> str | None:
    """What a folder without images holds, and what to do; None if it is nothing that is known."""
    files = list(islice((file for file in root.rglob("*") if file.is_file()), MOST_LOOKED_AT))
    if not files:
        return "it holds no file" if any(root.iterdir()) else "it is empty"
    if (root / "zarr.json").is_file():
        return "it is a feature set; name the images that it was made of"
    ends = Counter(extension(name) for name in {file.name for file in files})
    if HUGGING_FACE.intersection(file.name for file in files) or "arrow" in ends:
        return "it is a data set of Hugging Face, saved by `datasets`; name one of its splits, e.g. --split train"
    first = {end: min(file for file in files if extension(file.name) == end) for end in ("tar", "csv") if end in ends}
    if "tar" in first:
        tar = first["tar"]
        return f"it has tars in folders, e.g. {tar.relative_to(root)}; name the folder of one split: {tar.parent}"
    if "csv" in first:
        return f"it has a .csv; name that: {first['csv']}"
    end = next((end for end, _ in ends.most_common() if end in KINDS), None)
    return None if end is None else f"it has files .{end}, each {KINDS[end][0]}; {KINDS[end][1]}"


FOLDER = Plain(image_folder, is_made_of_states=True)
