"""What the parameter file asks of each stage, resolved: every value that some layer of it gives."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.datasets import TASKS, dataset_of, datasets_of, dense_datasets, entry_of, images_of
from pipelines.parameters.dense import datasets_of_task, of_task
from pipelines.parameters.detection import OF_DETECTION
from pipelines.parameters.engine import ENGINE
from pipelines.parameters.extraction import resolve_extraction
from pipelines.parameters.groups import params_of_study, studies_of
from pipelines.parameters.heads import heads_of
from pipelines.parameters.layers import Given, Layer, common_layers, resolve, values_of
from pipelines.parameters.options import Table
from pipelines.parameters.params import mapping, section
from pipelines.parameters.segmentation import OF_SEGMENTATION
from store import BeyondClsError
from store.errors import unknown
from store.places.disk import write_file

OPTIONS: dict[str, Table] = {"segment": OF_SEGMENTATION, "detect": OF_DETECTION}  # by task
FOLDERS = ("datasets", "encoders", "extract", "probes", "studies", "training", *TASKS)
NOTE = "README.md"
Recipe = dict[str, Given]


def of_extraction(params: Mapping[str, Any], encoder: str, dataset: str | None, split: str | None) -> Recipe:
    """What is asked of the extraction of a split: how images are opened, the encoder loaded, what is kept.

    Raises:
        BeyondClsError: an unknown name, or a parameter that nothing reads.
    """
    given = resolve_extraction(params, encoder, dataset, split)
    if dataset is None:
        return given
    where, images = entry_of(params, dataset)[0], images_of(params, dataset, split)
    return {name: Given(value, where) for name, value in images.items()} | given


def of_head(
    params: Mapping[str, Any], head: str, encoder: str | None = None, dataset: str | None = None, study: str | None = None
) -> Recipe:
    """What is asked of the training of a head, of a study's if one is named.

    Raises:
        BeyondClsError: an unknown name, a parameter that nothing reads, or two that exclude each other.
    """
    asked, layer = (params, None) if study is None else params_of_study(params, study)
    heads = heads_of(asked)
    if head not in heads:
        raise BeyondClsError(unknown("head", head, heads, "Add it to heads in the parameter file"))
    entry = {"aggregator": head, **mapping(f"heads.{head}", heads[head])}
    layers = [*common_layers(asked, encoder, dataset, layer), Layer(f"heads.{head}", entry)]
    given = resolve(layers)
    if dataset is not None and (metric := dataset_of(params, dataset).get("metric")) is not None:
        given["metric"] = Given(metric, f"datasets.{dataset}")
    return given


def all_recipes(params: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of a file for each stage of `dvc.yaml`: values alone, so moving one to another layer changes nothing.

    Raises:
        BeyondClsError: as `of_extraction` and `of_head`.
    """
    datasets, dense, heads = datasets_of(params), dense_datasets(params), heads_of(params)
    for dataset in (*datasets, *dense):
        yield f"datasets/{dataset}", {split: images_of(params, dataset, split) for split in ("train", "test")}
    for encoder in section(params, "encoders"):
        yield f"encoders/{encoder}", _of_set(of_extraction(params, encoder, None, None))
        for dataset in (*datasets, *dense):
            for split in ("train", "test"):
                yield f"extract/{encoder}-{dataset}-{split}", _of_set(of_extraction(params, encoder, dataset, split))
        for task, options in OPTIONS.items():
            for dataset in datasets_of_task(params, task):
                yield f"{task}/{dataset}/{encoder}", values_of(of_task(params, task, options, dataset, encoder))
        for dataset in datasets:
            training = resolve(common_layers(params, encoder, dataset))
            yield f"training/{dataset}/{encoder}", values_of(training)
            for head in heads:
                yield f"probes/{dataset}/{encoder}/{head}", values_of(of_head(params, head, encoder, dataset))
    for name in studies_of(params):
        yield f"studies/{name}", of_study(params, name)


def of_study(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Values that are asked of each head of a study, by name.

    Raises:
        BeyondClsError: as `of_head`, or it does not say its encoder or its data set.
    """
    study = mapping(name, studies_of(params)[name][1])
    for place in ("encoder", "dataset"):
        if not isinstance(study.get(place), str):
            example = f"add e.g. {place}: {next(iter(params.get(f'{place}s') or ['NAME']))}"
            raise BeyondClsError(f"study {name!r} has {place} {study.get(place)!r}, expected one of {place}s; {example}")
    heads = params_of_study(params, name)[0]["heads"]
    return {head: values_of(of_head(params, head, study["encoder"], study["dataset"], name)) for head in heads}


def _of_set(recipe: Recipe) -> dict[str, Any]:
    """Values on which a set depends, which is the same wherever it is computed."""
    return {name: value for name, value in values_of(recipe).items() if name not in ENGINE}


def write_recipes(params: Mapping[str, Any], out: Path) -> int:
    """Write the files of all stages below a folder; how many there are. Others stay: `dvc repro` removes all of them first.

    Raises:
        BeyondClsError: as `all_recipes` and `write_below`.
    """
    recipes = dict(all_recipes(params))
    write_below(out, FOLDERS, recipes)
    return len(recipes)


def write_below(out: Path, folders: Iterable[str], contents: Mapping[str, Any]) -> None:
    """Write NAME.json below a folder by name, `encoders/mae-b16`; nothing else there is touched.

    Args:
        folders: below it, which are made also where they stay empty.

    Raises:
        BeyondClsError: a folder below it is a link.
    """
    files = {out / f"{name}.json": content for name, content in contents.items()}
    below = {out / folder for folder in folders}.union(*(file.parents for file in files)) - {out, *out.parents}
    if link := next((folder for folder in sorted(below) if folder.is_symlink()), None):
        raise BeyondClsError(f"{link} is a link to {link.readlink()}, where nothing is to be written; remove it")
    for folder in sorted(below):
        folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_file(file, [(json.dumps(content, indent=1) + "\n").encode()])


def make_folders(folders: Iterable[Path]) -> None:
    """Make folders of results, each with a note unless it has one: the report needs all, and DVC keeps no empty folder."""
    for folder in (folder for folder in folders if not os.path.lexists(folder / NOTE)):
        folder.mkdir(parents=True, exist_ok=True)
        note = f"Results that `dvc repro` writes to {folder.name}/DATASET, as params.yaml asks; without any, this note alone.\n"
        write_file(folder / NOTE, [note.encode()])
