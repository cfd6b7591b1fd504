"""Data sets by form: forms of any images, and published data sets. One file for each, or for several of a kind."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extract.datasets.cifar import CIFAR10, CIFAR100
from extract.datasets.coco import COCO, COCO_PANOPTIC
from extract.datasets.form import Plain, Published, Splitting
from extract.datasets.image_set import ImageSet
from extract.datasets.imagenet import IMAGENET
from extract.datasets.index import Index, index_of
from extract.datasets.items import image_set
from extract.datasets.lists import CUB, FOOD101, NUS_WIDE, PETS, STANFORD_CARS
from extract.datasets.map_folders import ADE20K, CAMVID, CITYSCAPES, COCO_STUFF, MAP_FOLDER, VOC
from extract.datasets.objects import FUNCTION, items_of, name_of
from extract.datasets.own_images import CSV, FOLDER
from extract.datasets.pixels import Pixels
from extract.datasets.reading import Opening
from extract.datasets.sample import Box, DataError, Sample
from extract.datasets.tables import NPZ, TABLES
from extract.datasets.webdataset_tars import PIPE, TARS
from store.errors import unknown
from store.loading.order import read_ids, rows_named
from store.plugins import Registry
from store.shown import Bars, no_bars


def _check_form(form: object) -> None:
    if not isinstance(form, Plain | Splitting | Published):
        raise TypeError(f"it is {form!r}, expected a Plain, Splitting or Published of extract.datasets.form")


DATASETS = Registry[Plain | Splitting | Published]("datasets", _check_form) | {
    "tars": TARS,
    "folder": FOLDER,
    "csv": CSV,
    "function": FUNCTION,
    "npz": NPZ,
    "tables": TABLES,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "coco": COCO,
    "cub": CUB,
    "food101": FOOD101,
    "imagenet": IMAGENET,
    "nus-wide": NUS_WIDE,
    "pets": PETS,
    "stanford-cars": STANFORD_CARS,
    # With label maps.
    "ade20k": ADE20K,
    "camvid": CAMVID,
    "cityscapes": CITYSCAPES,
    "coco-panoptic": COCO_PANOPTIC,
    "coco-stuff": COCO_STUFF,
    "label-maps": MAP_FOLDER,
    "voc": VOC,
}


def open_images(
    source: Any,
    form: str | None = None,
    classes: Path | None = None,
    split: str | None = None,
    bars: Bars | None = None,
    *,
    allow_left_out: bool = False,
    allow_outside: bool = False,
    max_pixels: int | None = None,
    ids: Path | str | None = None,
    data_arguments: Mapping[str, Any] | None = None,
) -> ImageSet:
    """Images of a source; its form is recognised by its files unless given.

    Args:
        source: tars (path, address, pattern, brace expansion, folder of tars, `pipe:COMMAND`), a folder of class folders, a
            .csv, an .npz, a .parquet, a folder of .parquet or of Arrow, the folder of a published data set, or a function that
            gives images (FILE.py:FUNCTION, package.module:function). A pipe's command is run, and so is a function: see
            `webdataset_tars` and `objects`. From Python also what holds the images: a Dataset or DataLoader of PyTorch, a
            dataset of Hugging Face, a list, an array, (images, labels), or a mapping of these by split (`objects.items_of`).
        form: a name in DATASETS.
        classes: file of class names, one a line; published data sets have their own.
        split: of a published data set, of arrays or tables that have several, and of what a function gives; of other folders,
            the folder of that name in it, such as train.
        bars: (what, total, unit) to a context that gives a function to report progress by, of what takes long.
        allow_left_out: go on where more than a few of the images that are there cannot be taken (`ImageSet.left_out`).
        allow_outside: let paths of a .csv lead out of its folder. Only for a list that you wrote: others could name any file.
        max_pixels: of the largest image that is decoded; by default Pillow's limit, which guards against files that unpack to
            more than memory holds.
        ids: file that lists the images to take, an id or file name a line; they stay in the order of the source.
        data_arguments: of a function that gives the images.

    Raises:
        StoreError: `ids` cannot be read, or names images that are not there, or one twice.
        DataError: unknown form or split, no such source, no images, or too many that are left out.
    """
    is_named = isinstance(source, str | os.PathLike)
    name = str(source) if is_named else name_of(source)
    if is_named:
        form, source, split = _locate_images(name, form, split)
    elif form is not None:
        raise DataError(f"{name} is no place where images of form {form!r} are, but holds them itself; leave form out")
    if is_named and form not in DATASETS:
        raise DataError(unknown("form of data set", str(form), DATASETS))
    if data_arguments and form != "function":
        raise DataError(f"data_arguments are {dict(data_arguments)}, but no function gives these images; leave them out")
    if classes is not None and not classes.is_file():
        raise DataError(f"there is no file of class names {str(classes)!r}")
    if allow_outside and form != "csv":
        raise DataError(f"{name} is of form {form}, where no path may lead out; leave out --allow-outside, which is for a .csv")
    pixels = Pixels(max_pixels=max_pixels)
    pixels.raise_limit()
    path = index_of(str(source), form, split, classes) if is_named and not name.startswith(PIPE) else None
    index = None if path is None else Index.read(path)
    if index is not None and index.is_current():  # of forms that do not say what they are made of, none is
        images = ImageSet.of_index(index)
    else:
        opening = Opening(bars, allow_outside, data_arguments)
        with opening.begun():
            if form is not None:
                images = DATASETS[form].images(form, source, classes, split)
            else:
                images = image_set(name, items_of(source, name, split), classes)
        if path is not None and form is not None:
            images.keep_in(path, opening.sources if DATASETS[form].is_made_of_states else None, index)
    images.index.bars = bars or no_bars
    if not allow_left_out:
        images.left_out.check(images.source, len(images))
    if ids is not None:
        named = rows_named(images.samples.ids, read_ids(Path(ids)), images.source)
        images = images.part(sorted(map(int, named)))
    return images.with_pixels(pixels)


def form_of(source: str, split: str | None = None) -> str:
    """The form that `open_images` recognises: a name in DATASETS.

    Raises:
        DataError: it looks like several.
    """
    return _locate_images(source, None, split)[0]


def _locate_images(source: str, form: str | None, split: str | None) -> tuple[str, str, str | None]:
    """Form, place and split of images, where a split may be a folder."""
    folder = Path(source)
    published = {name: entry for name, entry in DATASETS.items() if isinstance(entry, Published)}
    is_split = split is not None and "://" not in source and (folder / split).is_dir() and form not in published
    if is_split and not any(entry.recognises(folder) for entry in published.values()):
        folder, source, split = folder / str(split), str(folder / str(split)), None
    if form is not None:
        return form, source, split
    if source.startswith(PIPE) or "://" in source:
        return "tars", source, split
    seen = [name for name, entry in published.items() if folder.is_dir() and entry.is_seen_in(folder)]
    if len(seen) > 1:
        raise DataError(f"{source} looks like {' and like '.join(seen)}; say which with --form")
    if seen:
        return seen[0], source, split
    if any(folder.glob("*.tar")):
        return "tars", source, split
    # Asked last of folders: it looks through those in them.
    splitting = (name for name, entry in DATASETS.items() if isinstance(entry, Splitting) and entry.recognises(source))
    other = "folder"
    if not folder.is_dir():
        other = "csv" if folder.suffix.lower() == ".csv" else "tars" if ".tar" in source else "folder"
    return next(splitting, other), source, split


__all__ = ["DATASETS", "Box", "DataError", "ImageSet", "Sample", "form_of", "open_images"]
