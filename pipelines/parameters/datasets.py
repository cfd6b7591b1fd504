"""Data sets of params.yaml, those of dense tasks among them: their entries, and where their images are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.features import FEATURES, IMAGES, TRANSFORM
from pipelines.parameters.options import check_values
from pipelines.parameters.params import check_names, mapping, section
from pipelines.parameters.training import OF_A_DATASET
from store import BeyondClsError
from store.errors import unknown
from store.user_code import file_of

# How the images of a data set are opened, what is decoded and kept of them, and what else its entry may say beside parameters
# of training: the metric that its heads must have.
OF_OPENING = ("train", "test", "function", "train_ids", *(name for name in IMAGES if name not in ("split", "ids")))
OF_EXTRACTION = ("views", "truths", "scale", "orientation")
OF_IMAGES = (*OF_OPENING, *OF_EXTRACTION, "metric")
METRICS = ("top1", "map")
DENSE = "dense"  # section of data sets with label maps and objects
# Stages, each with the data sets that it reads, and its options of each of them; and the folder of its results.
TASKS = {"segment": "segmentation", "detect": "detection"}
# What the encoder sees of an image, where a data set decides it: colours are the encoder's.
GEOMETRY = {name: option for name, option in TRANSFORM.items() if name not in ("mean", "std")}


def datasets_of(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Entries of `datasets` by name; a list has names alone.

    Raises:
        BeyondClsError: `datasets` is neither a list of names nor a mapping, or a parameter that nothing reads.
    """
    given = params.get("datasets") or {}
    if isinstance(given, list) and all(isinstance(name, str | int) for name in given):
        given = dict.fromkeys(map(str, given))
    if not isinstance(given, Mapping):
        example = "[cifar10] or {imagenet: {test: val}}"
        raise BeyondClsError(f"datasets in the parameter file is {given!r}, expected names, or what each needs: {example}")
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
        raise BeyondClsError(f"datasets.{dataset}.metric is {expected}, but its images have {labels} each; give {actual}")


def dense_datasets(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Entries of dense.datasets by name.

    Raises:
        BeyondClsError: they are not a mapping, a parameter that nothing reads, or a name that `datasets` has, too.
    """
    where = f"{DENSE}.datasets"
    datasets = {str(name): mapping(f"{where}.{name}", values) for name, values in dense_part(params, "datasets").items()}
    known = [*OF_OPENING, *FEATURES, *GEOMETRY]
    for name, values in datasets.items():
        check_names(f"{where}.{name}", values, known)
    if twice := next((name for name in datasets if name in datasets_of(params)), None):
        raise BeyondClsError(f"data set {twice!r} is in datasets and in {where}; give one of the two another name")
    return datasets


def dense_part(params: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A part of `dense`, by name; empty where the file has none.

    Raises:
        BeyondClsError: it has names alone, or is something else; or there is a part that nothing reads.
    """
    parts = section(params, DENSE)
    check_names(DENSE, parts, ["data", "datasets", *TASKS])
    values = parts.get(part)
    if isinstance(values, list) and values:
        written = ", ".join(f"{name}: {{}}" for name in values)
        raise BeyondClsError(f"{DENSE}.{part} in the parameter file is {values!r}, expected mappings; write {{{written}}}")
    return mapping(f"{DENSE}.{part}", values or None)


def entry_of(params: Mapping[str, Any], dataset: str) -> tuple[str, dict[str, Any]]:
    """Where the entry of a data set of either kind is, and the entry: `dense.datasets.camvid`.

    Raises:
        BeyondClsError: there is none of this name, or as `datasets_of` and `dense_datasets`.
    """
    kinds = {f"{DENSE}.datasets": dense_datasets(params), "datasets": datasets_of(params)}
    for where, entries in kinds.items():
        if dataset in entries:
            return f"{where}.{dataset}", entries[dataset]
    known = [name for entries in kinds.values() for name in entries]
    remedy = f"Add it to datasets or {DENSE}.datasets in the parameter file"
    raise BeyondClsError(unknown("data set", dataset, known, remedy))


def images_of(params: Mapping[str, Any], dataset: str, split: str | None) -> dict[str, Any]:
    """The images of a data set: `data`, its folder, address or function, and arguments of `open_images`.

    Args:
        dataset: in `datasets`, or in dense.datasets.
        split: "train" or "test", which the entry may call otherwise.

    Raises:
        BeyondClsError: there is no such data set, or the file does not name the folder of all of them.
    """
    where, values = entry_of(params, dataset)
    parent = where.removesuffix(f"datasets.{dataset}")  # empty, or `dense.`
    folder = section(params, DENSE).get("data") if parent else params.get("data")
    if not folder:
        raise BeyondClsError(f"{parent}data in the parameter file is {folder!r}, expected the folder that holds {dataset!r}")
    folder = f"{str(folder).rstrip('/')}/{dataset}"
    options = {name: values[name] for name in IMAGES if name not in ("split", "ids") and values.get(name) is not None}
    if split != "test" and values.get("train_ids") is not None:
        options["ids"] = f"{folder}/{values['train_ids']}"
    if not isinstance(arguments := options.get("data_arguments", {}), Mapping):
        raise BeyondClsError(f"{where}.data_arguments is {arguments!r}, expected names and values, e.g. {{year: 2021}}")
    check_values(f"{where}.", options, {name: option for name, option in IMAGES.items() if name != "data_arguments"})
    if split is not None:
        options["split"] = str(values.get(split) or split)
    function = str(values.get("function") or "")
    return {"data": f"{folder}/{function}" if file_of(function) else function or folder, **options}


def is_missing(data: str) -> bool:
    """Whether images are nowhere on this machine, nor at an address; a function of a module is taken to be there."""
    file = file_of(data)
    return (file is not None or ":" not in data) and not Path(file or data).exists()
