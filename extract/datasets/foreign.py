"""What is at a source in place of images, and what to do with it."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from extract.datasets.formats import extension, is_image

EXPORT = "write its images as files, a folder a class (FOLDER/CLASS/NAME.png), or as WebDataset tars"
UNPACK = "unpack it, and name the folder"
LIST = "a list is read as a .csv with columns id, path and label; write it so"
# By extension of a file.
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


def foreign_file(source: str) -> str:
    """Why a source that is no folder is not read, as the message of an error."""
    path = Path(source)
    if not path.exists():
        broken = ", only a link that leads nowhere; fetch what it leads to" if path.is_symlink() else ""
        return f"there is no folder {source!r}{broken}"
    end = extension(path.name)
    kind, remedy = KINDS.get(end, ("a file", f"expected tars, a folder with a folder per class, or a .csv; {EXPORT}"))
    if is_image(path.name):
        kind, remedy = "a single image", "name the folder that it is in, or show it to a probe: beyondcls predict"
    return f"{source} is {kind}, not a set of images; {remedy}"


def foreign_folder(root: Path) -> str | None:
    """What a folder without images holds, and what to do; None if it is nothing that is known."""
    files = list(islice(_files(root), MOST_LOOKED_AT))
    if not files:
        return "it holds no file" if any(root.iterdir()) else "it is empty"
    names = {file.name for file in files}
    if (root / "zarr.json").is_file():
        return "it is a feature set; name the images that it was made of"
    ends = Counter(extension(name) for name in names)
    if names & HUGGING_FACE or "arrow" in ends:
        return "it is a data set of Hugging Face, saved by `datasets`; name one of its splits, e.g. --split train"
    if "tar" in ends:
        tar = min(file for file in files if extension(file.name) == "tar")
        return f"it has tars in folders, e.g. {tar.relative_to(root)}; name the folder of one split: {tar.parent}"
    if "csv" in ends:
        return f"it has a .csv; name that: {min(file for file in files if extension(file.name) == 'csv')}"
    end, _ = next(((end, n) for end, n in ends.most_common() if end in KINDS), ("", 0))
    if not end:
        return None
    kind, remedy = KINDS[end]
    return f"it has files .{end}, each {kind}; {remedy}"


def _files(root: Path) -> Iterator[Path]:
    return (file for file in root.rglob("*") if file.is_file())
