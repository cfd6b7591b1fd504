"""How many images there are: counted where they are, else as published."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.parameters.datasets import dataset_of, datasets_of
from pipelines.parameters.images import images_of, is_missing
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.datasets import ImageSet

COUNTED, PUBLISHED = "counted", "as published"


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


@dataclass(frozen=True)
class Facts:
    """A data set as it is published: images of each split, as its reader names them."""

    splits: Mapping[str, int]
    n_classes: int
    multilabel: bool = False


# By form (extract/datasets). Images with other numbers are a sign of a damaged copy, so no other source is needed than the
# authors', which the catalogues of TensorFlow Datasets and Hugging Face repeat: caltech_birds2011, cars196, oxford_iiit_pet,
# food101, imagenet2012, coco; of NUS-WIDE the lists in its repository (NExTplusplus/NUS-WIDE).
FACTS = {
    "imagenet": Facts({"train": 1_281_167, "val": 50_000}, 1000),
    "cub": Facts({"train": 5_994, "test": 5_794}, 200),
    "stanford-cars": Facts({"train": 8_144, "test": 8_041}, 196),
    "pets": Facts({"trainval": 3_680, "test": 3_669}, 37),
    "food101": Facts({"train": 75_750, "test": 25_250}, 101),
    "nus-wide": Facts({"train": 161_789, "test": 107_859}, 81, multilabel=True),
    "coco": Facts({"train2017": 118_287, "val2017": 5_000, "train2014": 82_783, "val2014": 40_504}, 80, multilabel=True),
    "cifar10": Facts({"train": 50_000, "test": 10_000}, 10),
    "cifar100": Facts({"train": 50_000, "test": 10_000}, 100),
}
# Lists of images by file name: of semi-supervised learning on ImageNet (SimCLR; imagenet2012_subset in TensorFlow Datasets).
LISTS = {"imagenet-1pct.txt": 12_811, "imagenet-10pct.txt": 128_116}


def sizes_of(params: Mapping[str, Any], dataset: str) -> "tuple[Sizes, ImageSet | None]":
    """Sizes of a data set, and its training images if they are there.

    Raises:
        BeyondClsError: there are no images, and none of its form are published; or `open_images` refuses them.
    """
    from extract.datasets import open_images

    asked = {split: images_of(params, dataset, split) for split in ("train", "test")}
    place = asked["train"]["data"]
    if is_missing(place):
        return _published(params, dataset, asked), None
    opened = {}
    for split, options in asked.items():
        classes = options.pop("classes", None)
        opened[split] = open_images(options.pop("data"), classes=None if classes is None else Path(classes), **options)
    train = opened["train"]
    return Sizes(len(train), len(opened["test"]), max(1, len(train.class_counts)), train.multilabel, COUNTED), train


def all_sizes(params: Mapping[str, Any]) -> "tuple[dict[str, Sizes], ImageSet | None]":
    """Sizes by data set, and the training images of the first one that is there.

    Raises:
        BeyondClsError: as `sizes_of`.
    """
    sizes, first = {}, None
    for dataset in datasets_of(params):
        sizes[dataset], images = sizes_of(params, dataset)
        first = first or images
    return sizes, first


def _published(params: Mapping[str, Any], dataset: str, asked: Mapping[str, Mapping[str, Any]]) -> Sizes:
    from extract.datasets.form import ALTERNATIVES

    form = dataset_of(params, dataset).get("form") or dataset
    if form not in FACTS:
        raise BeyondClsError(
            f"there are no images at {asked['train']['data']!r}, and the size of {dataset!r} is not known; put them there, or "
            f"give datasets.{dataset} a form whose size is published: {', '.join(FACTS)}"
        )
    facts, numbers = FACTS[form], []
    for options in asked.values():
        if (listed := options.get("ids")) is not None and (n := _n_listed(listed)) is not None:
            numbers.append(n)
            continue
        split = options["split"]
        named = next((name for name in (split, *ALTERNATIVES.get(split, ())) if name in facts.splits), None)
        if named is None:
            raise BeyondClsError(
                f"datasets.{dataset} names a split {split!r}, but {form} has {', '.join(facts.splits)}; correct train or test "
                "in the parameter file"
            )
        numbers.append(facts.splits[named])
    train, test = numbers
    return Sizes(train, test, facts.n_classes, facts.multilabel, PUBLISHED)


def n_learnt(of_run: Mapping[str, Any], sizes: Sizes) -> int | None:
    """Images that a run trains on: all, or its subset; None if a list is not there whose length is not known either."""
    if of_run.get("k_shot") is not None:
        return min(sizes.train, int(of_run["k_shot"]) * sizes.n_classes)
    if of_run.get("percent") is not None:
        return max(1, round(sizes.train * of_run["percent"] / 100))
    if of_run.get("ids") is not None:
        return _n_listed(of_run["ids"])
    return sizes.train


def _n_listed(ids: str) -> int | None:
    """Images that a file lists; None if it is not there and its length is not known either."""
    file = Path(ids)
    return len(set(file.read_text().split("\n")) - {""}) if file.is_file() else LISTS.get(file.name)
