"""Data sets by form: WebDataset tars, or a folder of images."""

from pathlib import Path

from extract.datasets.image_folder import image_folder
from extract.datasets.image_set import DataError, ImageSet, Sample
from extract.datasets.webdataset_tars import webdataset_tars
from store.errors import unknown

DATASETS = {
    "tars": webdataset_tars,
    "folder": image_folder,
}


def open_images(source: str, form: str | None = None, classes: Path | None = None) -> ImageSet:
    """Images of a source; its form is seen from what lies there unless given.

    Args:
        source: tars (path, pattern, brace expansion, folder of tars) or a folder of class folders.
        form: a name in DATASETS.
        classes: file of class names, one a line.

    Raises:
        DataError: unknown form, nothing there, or no images.
    """
    if form is None:
        is_folder = Path(source).is_dir() and not any(Path(source).glob("*.tar"))
        form = "folder" if is_folder or not (".tar" in source or Path(source).is_dir()) else "tars"
    if form not in DATASETS:
        raise DataError(unknown("form of data set", form, DATASETS))
    if classes is not None and not classes.is_file():
        raise DataError(f"there is no file of class names {str(classes)!r}")
    return DATASETS[form](source, classes)


__all__ = ["DATASETS", "DataError", "ImageSet", "Sample", "open_images"]
