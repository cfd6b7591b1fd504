"""Data sets of params.yaml: names alone, or names with what differs from one to another."""

from collections.abc import Mapping
from typing import Any

from pipelines.parameters.features import IMAGES, TRANSFORM
from pipelines.parameters.params import check_names, mapping
from pipelines.parameters.training import OF_A_DATASET
from store import BeyondClsError
from store.errors import unknown

# How the images of a data set are opened, …
OF_OPENING = {
    "train": "split of the training images (train)",
    "test": "split of the test images (test)",
    "function": "FILE.py:FUNCTION of a file in its folder, or package.module:function, that gives the images",
    "train_ids": "file in its folder that lists the training images to take, an id or file name a line",
    **{name: option.help for name, option in IMAGES.items() if name not in ("split", "ids")},
}
# … what is decoded and kept of them, …
OF_EXTRACTION = {
    "views": "of each training image",
    "truths": "label maps and instances to keep, with commas; all or none",
    **{name: TRANSFORM[name].help for name in ("scale", "orientation")},
}
# … and what else its entry may say beside parameters of training.
OF_IMAGES = {
    **OF_OPENING,
    **OF_EXTRACTION,
    "metric": "top1 or map, which its heads must have",
}
METRICS = ("top1", "map")


def datasets_of(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Entries of `datasets` by name; a list has names alone.

    Raises:
        BeyondClsError: `datasets` is neither a list of names nor a mapping, or a parameter that nothing reads.
    """
    given = params.get("datasets") or {}
    if isinstance(given, list) and all(isinstance(name, str | int) for name in given):
        given = dict.fromkeys(map(str, given))
    if not isinstance(given, Mapping):
        raise BeyondClsError(
            f"datasets in the parameter file is {given!r}, expected names, e.g. [cifar10], or names with what they need, e.g. "
            "{imagenet: {test: val}}"
        )
    datasets = {str(name): mapping(f"datasets.{name}", values) for name, values in given.items()}
    for name, values in datasets.items():
        check_names(f"datasets.{name}", values, [*OF_IMAGES, *OF_A_DATASET])
        if values.get("metric") not in (None, *METRICS):
            raise BeyondClsError(f"datasets.{name}.metric is {values['metric']!r}, expected {' or '.join(METRICS)}")
    return datasets


def dataset_of(params: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """The entry of a data set.

    Raises:
        BeyondClsError: there is none of this name, or it has a parameter that nothing reads.
    """
    datasets = datasets_of(params)
    if dataset not in datasets:
        raise BeyondClsError(unknown("data set", dataset, datasets, "Add it to datasets in the parameter file"))
    return datasets[dataset]


def check_metric(params: Mapping[str, Any], dataset: str, is_multilabel: bool) -> None:
    """Refuse a data set whose heads cannot have the metric that its entry expects.

    Raises:
        BeyondClsError: mAP is of several labels an image, top-1 of one.
    """
    expected, actual = dataset_of(params, dataset).get("metric"), "map" if is_multilabel else "top1"
    if expected is not None and expected != actual:
        labels = "several labels" if is_multilabel else "one label"
        raise BeyondClsError(
            f"datasets.{dataset}.metric is {expected}, but its images have {labels} each, which {actual} measures; correct it, "
            "or the images"
        )
