"""Options of dense tasks: which data sets are segmented or searched, and how, in section `dense` of params.yaml."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.datasets import DENSE, dense_datasets, dense_part
from pipelines.parameters.layers import Given, values_of
from pipelines.parameters.options import Table, checked_options
from pipelines.parameters.params import mapping, read_params, section
from store import BeyondClsError
from store.errors import unknown


def options_of_task(
    file: Path | None,
    task: str,
    options: Table,
    dataset: str | None,
    encoder: str | None,
    command_line: Mapping[str, Any],
    of_presets: Collection[str] = (),
) -> dict[str, Any]:
    """Options of a command: those of the parameter file, and those of the command line, which win.

    Args:
        dataset, encoder: names in the file.
        of_presets: what a preset of the command line decides, in place of the file.

    Raises:
        BeyondClsError: a name without a file, or as `of_task`.
    """
    if file is None:
        for option, name in (("dataset", dataset), ("encoder", encoder)):
            if name is not None:
                raise BeyondClsError(f"--{option} {name} is in a parameter file; name it with --params")
        return dict(command_line)
    given = values_of(of_task(read_params(file), task, options, dataset, encoder))
    if command_line.get("preset") is not None:
        given = {name: value for name, value in given.items() if name not in of_presets}
    return given | dict(command_line)


def of_task(
    params: Mapping[str, Any], task: str, options: Table, dataset: str | None = None, encoder: str | None = None
) -> dict[str, Given]:
    """What the file says of the segmentation of a data set, or of a search for its objects, and where.

    `block` is the one that the encoder's entry names, if it does.

    Args:
        task: one of TASKS.
        options: of its command.
        dataset, encoder: names in the file; None: without what the file says of it.

    Raises:
        BeyondClsError: unknown names, an option that nothing reads, or a value of another type.
    """
    given: dict[str, Given] = {}
    if dataset is not None:
        entries, where = datasets_of_task(params, task), f"{DENSE}.{task}.{dataset}"
        if dataset not in entries:
            raise BeyondClsError(unknown("data set", dataset, entries, f"Add it to {DENSE}.{task} in the parameter file"))
        values = checked_options(where, mapping(where, entries[dataset]), options)
        given = {name: Given(value, where) for name, value in values.items()}
    if encoder is not None and (block := section(params, "encoders", encoder).get("block")) is not None:
        given["block"] = Given(block, f"encoders.{encoder}")
    return given


def datasets_of_task(params: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Options by data set.

    Raises:
        BeyondClsError: it is not a mapping, or names a data set that is not extracted.
    """
    entries, extracted = dense_part(params, task), dense_datasets(params)
    for name in entries:
        if str(name) not in extracted:
            where = f"{DENSE}.{task}"
            raise BeyondClsError(unknown(f"data set in {where}", str(name), extracted, f"Add it to {DENSE}.datasets"))
    return {str(name): values for name, values in entries.items()}
