"""A whole project: images, views, epochs and bytes of its parameter file, times rates that were measured."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import typer

from pipelines.parameters.groups import studies_of
from pipelines.parameters.params import read_params, section
from pipelines.parameters.recipes import all_recipes, of_study
from pipelines.planning.encoders import EncoderCost, measure_encoders, options_of
from pipelines.planning.sizes import Sizes, all_sizes, stand_ins
from pipelines.planning.trainings import ProbeRun, Trainings, runs
from pipelines.process.device import choose_device
from pipelines.store.table import size, table
from probe.aggregators import AGGREGATORS, is_custom, make_aggregator
from store.errors import BeyondClsError, unknown
from store.places.disk import existing_folder

SPLITS = ("train", "test")
N_STAND_INS = {"cpu": 64, "cuda": 512}
# Operations a second in bf16, dense, by the makers' data sheets (SXM, HGX; RTX 4090 with float32 sums), and the share
# of the peak that estimates go by: what is reached is for the user to measure.
GPUS = {"a100": 312e12, "h100": 989e12, "h200": 989e12, "b200": 2250e12, "l4": 121e12, "l40s": 362e12, "rtx4090": 165e12}
SHARE = 0.4
Work = dict[str, Any]  # of one extraction: its names, bytes, seconds and operations


def plan_project(
    file: Path, out: Path, given: Mapping[str, Any], device: str, seconds: float, n_tasks: int, gpu: str, json_file: Path | None
) -> None:
    """Measure, and print what extractions and trainings cost; arguments are options of the command, of which `given` win.

    Raises:
        BeyondClsError: a parameter file that describes no project, or what an extraction refuses.
    """
    params = read_params(file)
    _check(params, file)
    place, folder = choose_device(device), existing_folder(out)
    sizes, images = all_sizes(params)
    with tempfile.TemporaryDirectory(prefix="beyondcls-plan-") as temporary:
        images = images or stand_ins(Path(temporary) / "images", N_STAND_INS[place.type])
        source = "stand-ins, as no data set is here" if images.source.startswith(temporary) else images.source
        encoders = measure_encoders(params, images, given, device, folder, seconds)
    typer.echo("measuring heads …")
    extracted, trainings = list(extractions(params, given, encoders, sizes)), Trainings(place)
    trained = [(run, trainings.seconds(run, sizes[run.dataset])) for run in runs(params, given, encoders, sizes)]
    nbytes, flops, extraction_s = (sum(one[name] or 0 for one in extracted) for name in ("nbytes", "flops", "seconds"))
    extraction_s, training_s = extraction_s / n_tasks, sum(training_s for _, training_s in trained)
    free, estimated_s = shutil.disk_usage(folder).free, flops / GPUS[gpu] / SHARE
    images_of_each = [(n, f"{one.train:,}", f"{one.test:,}", f"{one.n_classes:,}", one.source) for n, one in sizes.items()]
    for lines in (
        [f"measured on {place}, threads: {torch.get_num_threads()}, by {source}"],
        table([("data set", "train", "test", "classes", ""), *images_of_each], right=(1, 2, 3)),
        _encoders_table(encoders),
        _extraction_table(extracted, sizes),
        _training_table(trained),
        [
            f"extraction  {in_words(extraction_s)}{shared_by(n_tasks)}",
            f"training    {in_words(training_s)}, one run after the other",
            f"writes      {size(nbytes)}; {fits(nbytes, free)}",
            f"estimate    {flops / 1e15:,.3g} PFLOP through the encoders, {in_words(estimated_s)} of one {gpu} at {SHARE:.0%} "
            "of its peak, without decoding, statistics and writing",
            *(f"not counted {name}: {why}" for name, why in trainings.left_out.items()),
            "not counted compose, extract-composed, blocks, few-shot, geometry, similarity, norms, score, "
            "correspond, retrieve, track, depth, divergence, localise, segment, detect, attention and report",
        ],
    ):
        typer.echo("\n".join(["", *lines]))
    if json_file is not None:
        numbers = {
            "device": str(place),
            "images": source,
            "datasets": {name: asdict(one) for name, one in sizes.items()},
            "encoders": {name: asdict(one) for name, one in encoders.items()},
            "extractions": extracted,
            "trainings": [{"name": r.name, "encoder": r.encoder, "dataset": r.dataset, "seconds": s} for r, s in trained],
            "left_out": trainings.left_out,
            "total": {"nbytes": nbytes, "free_nbytes": free, "n_tasks": n_tasks, "seconds": extraction_s + training_s},
            "estimate": {"gpu": gpu, "flops": flops, "seconds": estimated_s},
        }
        json_file.write_text(json.dumps(numbers, indent=1) + "\n")


def _check(params: Mapping[str, Any], file: Path) -> None:
    """Refuse a parameter file that describes no project, before anything is measured."""
    encoders = section(params, "encoders")
    for name, there, example in (("encoders", encoders, "{mae-b16: {}}"), ("datasets", params.get("datasets"), "[cifar10]")):
        if not there:
            raise BeyondClsError(f"{file} has no {name}, expected one or more by name; add e.g. {name}: {example}")
    heads = [asked for name, asked in all_recipes(params) if name.startswith("probes/")]
    for study, (_, entry) in studies_of(params).items():
        heads += of_study(params, study).values()
        if entry.get("joined") not in (None, *encoders):
            raise BeyondClsError(unknown(f"joined of study {study!r}", str(entry["joined"]), encoders))
    for asked in heads:
        if asked["aggregator"] not in AGGREGATORS and not is_custom(asked["aggregator"]):
            make_aggregator(asked["aggregator"], 1)  # says so


def extractions(
    params: Mapping[str, Any], given: Mapping[str, Any], encoders: Mapping[str, EncoderCost], sizes: Mapping[str, Sizes]
) -> Iterator[Work]:
    """Each split of a data set through an encoder, in the stages `extract`, `extract-blocks` and `extract-whole`."""
    asked: list[tuple[str, str, str, str, tuple[str, ...]]] = [
        ("extract", name, name, dataset, SPLITS) for name in section(params, "encoders") for dataset in sizes
    ]
    for study, entry in section(params, "block_studies").items():
        asked.append(("extract-blocks", study, entry["encoder"], entry["dataset"], SPLITS))
    for entry in section(params, "whole").values():
        asked.append(("extract-whole", entry["encoder"], entry["encoder"], entry["dataset"], SPLITS[1:]))
    for stage, key, encoder, dataset, splits in asked:
        for split in splits:
            measured, n = encoders[key], getattr(sizes[dataset], split)
            views = options_of(params, given, encoder, dataset, split).get("views") or 1
            cost: Work = {"nbytes": n * measured.image_nbytes(views), "seconds": n * views / measured.rates.images_per_s}
            cost["flops"] = measured.flops and n * views * measured.flops
            yield {"stage": stage, "encoder": encoder, "dataset": dataset, "split": split, **cost}


def _encoders_table(encoders: Mapping[str, EncoderCost]) -> list[str]:
    """Crops a second, and what an image has in one view."""
    titles = ("encoder", "images", "crops/s", "decoding", "encoder alone", "an image", "GFLOP", "GPU memory")
    rows: list[tuple[str, ...]] = [titles]
    for name, one in encoders.items():
        rates, flops = one.rates, "not counted" if one.flops is None else f"{one.flops / 1e9:,.1f}"
        speeds = (f"{rate:,.2f}" for rate in (rates.images_per_s, rates.decoded_per_s, rates.encoded_per_s))
        rows.append((name, str(rates.n_sampled), *speeds, size(one.image_nbytes(1)), flops, size(rates.device_nbytes)))
    return table(rows, right=range(1, 8))


def _extraction_table(extracted: Sequence[Work], sizes: Mapping[str, Sizes]) -> list[str]:
    """Bytes and time of each encoder on each data set, both splits, all stages."""
    rows = [("extract", *(column for name in sizes for column in (name, "")))]
    for encoder in dict.fromkeys(one["encoder"] for one in extracted):
        cells = []
        for dataset in sizes:
            works = [one for one in extracted if (one["encoder"], one["dataset"]) == (encoder, dataset)]
            cells += [size(sum(one["nbytes"] for one in works)), in_words(sum(one["seconds"] for one in works))]
        rows.append((encoder, *cells))
    return table(rows, right=range(1, len(rows[0])))


def _training_table(trained: Sequence[tuple[ProbeRun, float]]) -> list[str]:
    """Time of each head and study, over all encoders and data sets."""
    rows = [("train", "runs", "")]
    for name in dict.fromkeys(run.name for run, _ in trained):
        of_name = [seconds for run, seconds in trained if run.name == name]
        rows.append((name, str(len(of_name)), in_words(sum(of_name))))
    return table(rows, right=(1, 2))


def shared_by(n_tasks: int) -> str:
    """With how many tasks, in words."""
    return f" with {n_tasks} tasks on as many machines like this one" if n_tasks > 1 else ""


def fits(nbytes: float, free: float) -> str:
    """In words, whether `nbytes` fit into the `free` ones."""
    if nbytes <= free:
        return f"{size(free)} are free"
    return f"{size(free)} are free, {size(nbytes - free)} too little: choose another disk, --dtype int8, or fewer --views"


def in_words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.4 hours`, `12 days`."""
    for unit, length, below in (("s", 1, 100), ("min", 60, 6000), ("hours", 3600, 48 * 3600)):
        if seconds < below:
            return f"{seconds / length:.2g} {unit}" if seconds < 10 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"
