"""Section `dense` of params.yaml: data sets with label maps and objects, and which of them are segmented or searched."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.datasets import OF_OPENING, datasets_of
from pipelines.parameters.features import FEATURES, TRANSFORM
from pipelines.parameters.layers import Given
from pipelines.parameters.options import Table
from pipelines.parameters.params import check_names, check_type, mapping, read_params, section
from store import BeyondClsError
from store.errors import unknown

SECTION = "dense"
# Stages, each with the data sets that it reads, and its options of each of them; and the folder of its results.
TASKS = {"segment": "segmentation", "detect": "detection"}
# What the encoder sees of an image, where a data set decides it: colours are the encoder's.
GEOMETRY = {name: option for name, option in TRANSFORM.items() if name not in ("mean", "std")}
WHOLE_IMAGES = {"crop_mode": "squash", "crop_pct": 1.0}


def dense_section(params: Mapping[str, Any]) -> dict[str, Any]:
    """The section; empty where the file has none.

    Raises:
        BeyondClsError: it is not a mapping, or has a part that nothing reads.
    """
    values = section(params, SECTION)
    check_names(SECTION, values, ["data", "datasets", *TASKS])
    return values


def dense_datasets(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Entries of dense.datasets by name.

    Raises:
        BeyondClsError: they are not a mapping, a parameter that nothing reads, or a name that `datasets` has, too.
    """
    where = f"{SECTION}.datasets"
    datasets = {str(name): mapping(f"{where}.{name}", values) for name, values in _by_name(params, "datasets").items()}
    known = [*OF_OPENING, *FEATURES, *GEOMETRY]
    for name, values in datasets.items():
        check_names(f"{where}.{name}", values, known)
    if twice := next((name for name in datasets if name in datasets_of(params)), None):
        raise BeyondClsError(
            f"data set {twice!r} is in datasets and in {where}, and both would write features/ENCODER-{twice}-train; give one "
            "of the two another name"
        )
    return datasets


def features_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of the images of a data set: all truths, unless its entry says otherwise."""
    return {"truths": "all"} | {name: entry[name] for name in FEATURES if entry.get(name) is not None}


def geometry_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What encoders see of the images of a data set: whole images, unless its entry says otherwise."""
    return WHOLE_IMAGES | {name: entry[name] for name in GEOMETRY if entry.get(name) is not None}


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
                raise BeyondClsError(
                    f"--{option} {name} is in a parameter file; name it with --params, e.g. --params params.yaml"
                )
        return dict(command_line)
    given = {name: one.value for name, one in of_task(read_params(file), task, options, dataset, encoder).items()}
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
        entries, where = datasets_of_task(params, task), f"{SECTION}.{task}.{dataset}"
        if dataset not in entries:
            raise BeyondClsError(unknown("data set", dataset, entries, f"Add it to {SECTION}.{task} in the parameter file"))
        values = mapping(where, entries[dataset])
        check_names(where, values, list(options))
        values = {name: value for name, value in values.items() if value is not None}
        for name, value in values.items():
            given[name] = Given(_checked(f"{where}.{name}", value, options, name), where)
    if encoder is not None and (block := section(params, "encoders", encoder).get("block")) is not None:
        given["block"] = Given(block, f"encoders.{encoder}")
    return given


def datasets_of_task(params: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Options by data set.

    Raises:
        BeyondClsError: it is not a mapping, or names a data set that is not extracted.
    """
    entries, extracted = _by_name(params, task), dense_datasets(params)
    for name in entries:
        if str(name) not in extracted:
            where = f"{SECTION}.{task}"
            raise BeyondClsError(unknown(f"data set in {where}", str(name), extracted, f"Add it to {SECTION}.datasets"))
    return {str(name): values for name, values in entries.items()}


def _by_name(params: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A part of the section.

    Raises:
        BeyondClsError: it has names alone, or is something else.
    """
    values = dense_section(params).get(part)
    if isinstance(values, list) and values:
        written = ", ".join(f"{name}: {{}}" for name in values)
        raise BeyondClsError(
            f"{SECTION}.{part} in the parameter file is {values!r}, expected names and what each needs; write {{{written}}}"
        )
    return mapping(f"{SECTION}.{part}", values or None)


def _checked(where: str, value: Any, options: Table, name: str) -> Any:
    """A value as the command takes it.

    Raises:
        BeyondClsError: of another type, or too small.
    """
    option = options[name]
    if option.read is not None or option.type == list[str]:
        values = value if isinstance(value, list | tuple) else None
        if values is None or not values:
            raise BeyondClsError(f"{where} is {value!r}, expected a list; give e.g. [{value}]")
        return option.read(where, ",".join(map(str, values))) if option.read else [str(one) for one in values]
    check_type(where, value, str if option.type is Path else option.type)
    if option.least is not None and value < option.least:
        raise BeyondClsError(f"{where} is {value}, expected {option.least} or more")
    return value
