"""Section `dense` of params.yaml: whether its data sets are here, and whether the commands will understand it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.dense import datasets_of_task, dense_datasets, geometry_of, of_task
from pipelines.parameters.images import images_of
from pipelines.parameters.params import section
from pipelines.parameters.recipes import OPTIONS, values_of
from store.errors import BeyondClsError


def checks(params: Mapping[str, Any]) -> Iterator[Callable[[], object]]:
    """Each raises a BeyondClsError where the file has a mistake."""
    try:
        datasets = dense_datasets(params)
        tasks = [(task, dataset) for task in OPTIONS for dataset in datasets_of_task(params, task)]
    except BeyondClsError as error:
        mistake = error  # `error` is gone when the check runs
        yield lambda: _raise(mistake)
        return
    yield from (lambda name=name: _dataset(params, name, datasets[name]) for name in datasets)
    yield from (lambda one=one: _task(params, *one) for one in tasks)


def absent(folder: Path, params: Mapping[str, Any]) -> Iterator[str]:
    """Each data set that neither is here nor is made by a stage."""
    for name in dense_datasets(params):
        place = str(images_of(params, name, None)["data"])
        is_made = name in section(params, "composed_dense") and Path(place) == Path("composed", name)
        if "://" not in place and not is_made and not (folder / place).exists():
            yield f"dense.datasets.{name} is read from {place}, which is not here; correct dense.data, or put it there"


def _raise(error: BeyondClsError) -> None:
    raise error


def _dataset(params: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> None:
    """Refuse a data set that cannot be extracted as it is described.

    Raises:
        BeyondClsError: an unknown form or statistic, or a crop or size that cannot be.
    """
    from extract.datasets import DATASETS
    from extract.requests import known_statistics
    from extract.transform import CHECKS, checked_transform
    from store.errors import unknown

    form = images_of(params, name, None).get("form")
    if form is not None and form not in DATASETS:
        raise BeyondClsError(unknown(f"form of dense.datasets.{name}", str(form), DATASETS))
    known_statistics(entry.get("statistics"))
    checked_transform({option: geometry_of(entry).get(option) for option in CHECKS})


def _task(params: Mapping[str, Any], task: str, dataset: str) -> None:
    """Refuse options that the command would refuse.

    Raises:
        BeyondClsError: names the value, and what was expected.
    """
    from pipelines import detect, segment

    options = values_of(of_task(params, task, OPTIONS[task], dataset))
    if task == "segment":
        segment.settings(options, 224)
    else:
        detect.settings(options.get("preset"), options)
