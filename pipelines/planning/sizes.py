"""How many images there are: counted where they are, else as published; and stand-ins to measure with."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from pipelines.parameters.datasets import datasets_of, images_of, is_missing
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.datasets import ImageSet

COUNTED, PUBLISHED = "counted", "as published"
# Images of each split, as its reader names them, and classes, by form (extract/datasets). Other numbers are a sign of a damaged
# copy, so no other source is needed than the authors', which the catalogues of TensorFlow Datasets and Hugging Face
# repeat: caltech_birds2011, cars196, oxford_iiit_pet, food101, imagenet2012, coco; of NUS-WIDE the lists in its repository.
FACTS: dict[str, tuple[dict[str, int], int]] = {
    "imagenet": ({"train": 1_281_167, "val": 50_000}, 1000),
    "cub": ({"train": 5_994, "test": 5_794}, 200),
    "stanford-cars": ({"train": 8_144, "test": 8_041}, 196),
    "pets": ({"trainval": 3_680, "test": 3_669}, 37),
    "food101": ({"train": 75_750, "test": 25_250}, 101),
    "nus-wide": ({"train": 161_789, "test": 107_859}, 81),
    "coco": ({"train2017": 118_287, "val2017": 5_000, "train2014": 82_783, "val2014": 40_504}, 80),
    "cifar10": ({"train": 50_000, "test": 10_000}, 10),
    "cifar100": ({"train": 50_000, "test": 10_000}, 100),
}
MULTILABEL = ("nus-wide", "coco")
# Lists of images by file name: of semi-supervised learning on ImageNet (SimCLR; imagenet2012_subset in TensorFlow Datasets).
LISTS = {"imagenet-1pct.txt": 12_811, "imagenet-10pct.txt": 128_116}


@dataclass(frozen=True)
class Sizes:
    """Images of a data set.

    Attributes:
        train, test: numbers of images.
        n_classes: K.
        multilabel: whether an image may have several labels.
        source: COUNTED or PUBLISHED.
    """

    train: int
    test: int
    n_classes: int
    multilabel: bool
    source: str


def all_sizes(params: Mapping[str, Any]) -> "tuple[dict[str, Sizes], ImageSet | None]":
    """Sizes by data set, and the training images of the first one that is there.

    Raises:
        BeyondClsError: there are no images, and none of their form are published; or `open_images` refuses them.
    """
    from extract.datasets import open_images

    sizes, first = dict[str, Sizes](), None
    for dataset, entry in datasets_of(params).items():
        asked = {split: images_of(params, dataset, split) for split in ("train", "test")}
        if is_missing(asked["train"]["data"]):
            sizes[dataset] = _published(dataset, entry.get("form") or dataset, asked)
            continue
        opened = []
        for options in asked.values():
            classes = options.pop("classes", None)
            opened.append(open_images(options.pop("data"), classes=None if classes is None else Path(classes), **options))
        train, test = opened
        sizes[dataset] = Sizes(len(train), len(test), max(1, len(train.class_counts)), train.multilabel, COUNTED)
        first = first or train
    return sizes, first


def _published(dataset: str, form: str, asked: Mapping[str, Mapping[str, Any]]) -> Sizes:
    """Sizes as published; `asked`: options of images by split."""
    from extract.datasets.form import ALTERNATIVES

    if form not in FACTS:
        missing = f"there are no images at {asked['train']['data']!r}, and the size of {dataset!r} is not known"
        raise BeyondClsError(f"{missing}; put them there, or give it a form whose size is published: {', '.join(FACTS)}")
    (splits, n_classes), numbers = FACTS[form], []
    for options in asked.values():
        split = options["split"]
        named = next((name for name in (split, *ALTERNATIVES.get(split, ())) if name in splits), None)
        n = n_listed(options["ids"]) if "ids" in options else None
        if n is None and named is None:
            raise BeyondClsError(f"datasets.{dataset} names a split {split!r}, but {form} has {', '.join(splits)}; correct it")
        numbers.append(splits[str(named)] if n is None else n)
    return Sizes(numbers[0], numbers[1], n_classes, form in MULTILABEL, PUBLISHED)


def n_learnt(of_run: Mapping[str, Any], sizes: Sizes) -> int | None:
    """Images that a run trains on: all, or its subset; None if a list is not there whose length is not known either."""
    if of_run.get("k_shot") is not None:
        return min(sizes.train, int(of_run["k_shot"]) * sizes.n_classes)
    if of_run.get("percent") is not None:
        return max(1, round(sizes.train * of_run["percent"] / 100))
    return sizes.train if of_run.get("ids") is None else n_listed(of_run["ids"])


def n_listed(ids: str) -> int | None:
    """Images that a file lists; None if it is not there and its length is not known either."""
    file = Path(ids)
    return len(set(file.read_text().split("\n")) - {""}) if file.is_file() else LISTS.get(file.name)


def stand_ins(folder: Path, n: int) -> "ImageSet":
    """JPEGs of noise that is smooth as photographs are: 500 x 375 pixels and about 100 kB each, as those of ImageNet."""
    from extract.datasets import open_images

    (folder / "stand-in").mkdir(parents=True)
    for number in range(n):
        noise = np.random.default_rng(number).integers(0, 256, (100, 133, 3)).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(file, "jpeg", quality=90)
        (folder / "stand-in" / f"{number:04d}.jpg").write_bytes(file.getvalue())
    return open_images(str(folder), form="folder")
