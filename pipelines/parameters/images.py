"""Images of the data sets of params.yaml, those of dense tasks among them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.dense import SECTION, dense_datasets, dense_section
from pipelines.parameters.features import IMAGES
from pipelines.parameters.params import check_type
from store import BeyondClsError
from store.errors import unknown
from store.user_code import file_of


def images_of(params: Mapping[str, Any], dataset: str, split: str | None) -> dict[str, Any]:
    """The images of a data set: `data`, its folder, address or function, and arguments of `open_images`.

    Args:
        dataset: in `datasets`, or in dense.datasets.
        split: "train" or "test", which the entry may call otherwise.

    Raises:
        BeyondClsError: there is no such data set, or the file does not name the folder of all of them.
    """
    datasets, dense = datasets_of(params), dense_datasets(params)
    if dataset not in datasets | dense:
        raise BeyondClsError(
            unknown("data set", dataset, [*datasets, *dense], f"Add it to datasets or {SECTION}.datasets in the parameter file")
        )
    values = datasets[dataset] if dataset in datasets else dense[dataset]
    where, folder = ("data", params.get("data")) if dataset in datasets else ("dense.data", dense_section(params).get("data"))
    if not folder:
        raise BeyondClsError(
            f"{where} in the parameter file is {folder!r}, expected the folder that holds {dataset!r}, e.g. data"
        )
    folder = f"{str(folder).rstrip('/')}/{dataset}"
    options = {name: values[name] for name in IMAGES if name not in ("split", "ids") and values.get(name) is not None}
    if split != "test" and values.get("train_ids") is not None:
        options["ids"] = f"{folder}/{values['train_ids']}"
    if not isinstance(arguments := options.get("data_arguments", {}), Mapping):
        raise BeyondClsError(
            f"the data_arguments of data set {dataset!r} in the parameter file are {arguments!r}, expected names and values, "
            "e.g. {year: 2021}"
        )
    for name, value in options.items():
        if name == "data_arguments":
            continue
        check_type(f"the {name} of data set {dataset!r} in the parameter file", value, IMAGES[name].type)
    if split is not None:
        options["split"] = str(values.get(split) or split)
    function = str(values.get("function") or "")
    return {"data": f"{folder}/{function}" if file_of(function) else function or folder, **options}


def is_missing(data: str) -> bool:
    """Whether images are nowhere on this machine, nor at an address; a function of a module is taken to be there."""
    file = file_of(data)
    return (file is not None or ":" not in data) and not Path(file or data).exists()
