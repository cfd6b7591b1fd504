"""`beyondcls params`: what the parameter file asks of a stage, and where each value comes from."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from store import BeyondClsError
from store.errors import unknown

if TYPE_CHECKING:
    from pipelines.parameters.layers import Given


def main(
    params: Annotated[Path, typer.Option(help="the parameter file")] = Path("params.yaml"),
    encoder: Annotated[str | None, typer.Option(help="of encoders: show its extraction, or the training of --head")] = None,
    dataset: Annotated[str | None, typer.Option(help="of datasets, or of dense.datasets")] = None,
    split: Annotated[str | None, typer.Option(help="of an extraction: train or test")] = None,
    head: Annotated[str | None, typer.Option(help="of heads, or of --study: show its training")] = None,
    task: Annotated[
        str | None, typer.Option(help="segment or detect: show its options for --dataset, one of dense.datasets")
    ] = None,
    study: Annotated[str | None, typer.Option(help="of studies, block_studies: show the training of --head, or of all")] = None,
    out: Annotated[Path | None, typer.Option(help="write what is asked of every stage into this folder")] = None,
    results: Annotated[
        str | None, typer.Option(help="with --out: folders of results, with commas, which are made where there are none yet")
    ] = None,
) -> None:
    """Show what becomes of params.yaml: every value that one stage gets, and which part of the file it comes from.

    Without --encoder, --head, --study or --task, what there is. A head's own parameters win over its study's, those over its
    encoder's, those over its data set's, those over `probe`; of an extraction the encoder's over the data set's over `extract`.
    """
    from pipelines.parameters.params import read_params
    from pipelines.parameters.recipes import make_folders, of_extraction, write_recipes

    content = read_params(params)
    if results is not None and out is None:
        raise BeyondClsError(f"--results {results} are made beside what --out writes; give it, too, e.g. --out recipes")
    if out is not None:
        typer.echo(f"{out}: {write_recipes(content, out)} files")
        make_folders([Path(name) for name in results.split(",")] if results else [])
        return
    if split not in (None, "train", "test"):
        raise BeyondClsError(f"--split is {split!r}, expected train or test")
    if task is not None:
        lines = iter(_format_table(_options_of_task(content, task, encoder, dataset)))
    elif head is not None or study is not None:
        lines = _explain_training(content, head, encoder, dataset, study)
    elif encoder is not None:
        lines = iter(_format_table(of_extraction(content, encoder, dataset, split)))
    else:
        lines = _overview(content)
    for line in lines:
        typer.echo(line)


def _explain_training(
    params: Mapping[str, Any], head: str | None, encoder: str | None, dataset: str | None, study: str | None
) -> Iterator[str]:
    """The training of a head, or of all heads of a study: what the file gives, and what its preset or the defaults add."""
    from pipelines.parameters.groups import params_of_study, studies_of
    from pipelines.parameters.params import mapping
    from pipelines.parameters.recipes import of_head
    from probe.recipe import PRESETS, Recipe

    heads = [head] if head is not None else list(params_of_study(params, str(study))[0]["heads"])
    if study is not None and study in (studies := studies_of(params)):
        entry = mapping(study, studies[study][1])
        encoder, dataset = encoder or entry.get("encoder"), dataset or entry.get("dataset")
    for name in heads:
        if len(heads) > 1:
            yield f"{name}:"
        given = of_head(params, name, encoder, dataset, study)
        of_preset = PRESETS.get(given["preset"].value, {}) if "preset" in given else {}
        yield from _format_table(_with_defaults(given, of_preset, asdict(Recipe())))


def _options_of_task(params: Mapping[str, Any], task: str, encoder: str | None, dataset: str | None) -> "dict[str, Given]":
    """Options of a dense task: what the file gives, what its preset adds, and in words what the command does by default."""
    from pipelines.parameters.dense import of_task
    from pipelines.parameters.recipes import OPTIONS

    if task not in OPTIONS:
        raise BeyondClsError(unknown("task", task, OPTIONS))
    if dataset is None:
        raise BeyondClsError(f"--task {task} is asked of a data set; give --dataset, one of dense.{task}")
    options = OPTIONS[task]
    given, of_preset = of_task(params, task, options, dataset, encoder), {}
    if task == "detect":
        from pipelines.detect import OPTIONS as options
        from probe.detection.recipe import preset_of_detection

        parts = preset_of_detection(given["preset"].value if "preset" in given else None)
        of_preset = {name: value for part in parts for name, value in part.items()}
    return _with_defaults(given, of_preset, {name: option.default for name, option in options.items() if option.default})


def _with_defaults(given: "dict[str, Given]", of_preset: Mapping[str, Any], defaults: Mapping[str, Any]) -> "dict[str, Given]":
    """With the values of its preset, and the defaults of what is not given."""
    from pipelines.parameters.layers import Given

    preset = given["preset"].value if "preset" in given else None
    by_preset = {name: Given(value, f"preset {preset}") for name, value in of_preset.items()}
    added = {name: Given(value, "default") for name, value in defaults.items()} | by_preset
    return given | {name: one for name, one in added.items() if name not in given}


def _format_table(given: "Mapping[str, Given]") -> list[str]:
    from pipelines.store.table import table

    return table([("parameter", "value", "from"), *((name, _as_text(one.value), one.where) for name, one in given.items())])


def _as_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _overview(params: Mapping[str, Any]) -> Iterator[str]:
    """Names in the sections, as they may be given to the options."""
    from pipelines.parameters.datasets import TASKS, datasets_of, dense_datasets
    from pipelines.parameters.dense import datasets_of_task
    from pipelines.parameters.groups import studies_of
    from pipelines.parameters.heads import heads_of
    from pipelines.parameters.params import section

    named = {"datasets": datasets_of(params), "encoders": section(params, "encoders"), "heads": heads_of(params)}
    dense = {"dense": dense_datasets(params), **{task: datasets_of_task(params, task) for task in TASKS}}
    for section_name, entries in {**named, "studies": studies_of(params), **dense}.items():
        yield f"{section_name:9} {', '.join(entries) or 'none'}"
