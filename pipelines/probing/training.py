"""Heads trained by this process, as `beyondcls probe` asks."""

import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import typer
import xxhash

from pipelines.parameters.datasets import check_metric
from pipelines.parameters.engine import without, without_engine
from pipelines.parameters.groups import check_groups, params_of_study, studies_of
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.layers import common_layers, logs_of
from pipelines.parameters.params import named_values, read_params
from pipelines.process.command_log import recorded_command
from pipelines.process.device import choose_device
from pipelines.process.epoch_logs import epoch_logs
from pipelines.process.progress import progress_bar
from pipelines.process.tasks import is_first
from pipelines.sharing.places import open_features
from probe.checkpoint import Stopped
from probe.grid import HeadPlan
from probe.passes import Loop
from probe.result_files import METRICS, read_result
from probe.results import FILES, absent_kinds, write_absent
from probe.run import n_epochs, probe
from probe.subsets import k_shot, percentage
from store import BeyondClsError, FeatureStore, read_ids, rows_of_ids

Draw = Callable[[int, np.ndarray], np.ndarray]  # of a seed, and the rows to draw from


def train_heads(
    stops: Callable[[], bool],
    *,
    features: str,
    test: str,
    out: Path,
    head: Sequence[str],
    params: Path | None,
    encoder: str | None,
    dataset: str | None,
    study: str | None,
    option: Sequence[str],
    joined: str | None,
    joined_test: str | None,
    skip_absent: bool,
    retrain: bool,
    device: str,
    log: Sequence[str],
    loop: Callable[[FeatureStore], Loop] | None,
    given: Mapping[str, Any],
) -> bool:
    """Train heads, or see that they are in place; whether that was finished. Arguments are options of the command, and:

    Args:
        stops: whether to stop after an epoch.
        log: names of logs; none: those of the parameter file.
        loop: makes the encoder in the loop, for the feature set of the training images; None: features are read.
        given: options of OF_A_RECIPE, OF_A_HEAD, OF_A_PROTOCOL and OF_A_RUN.

    Raises:
        BeyondClsError: names that the parameter file does not have, values that exclude each other, and as `probe.run.probe`.
    """
    described = {} if params is None else read_params(params)
    content, layer = (described, None) if study is None else params_of_study(described, study)
    names = head if study is None else list(content["heads"])
    layers = common_layers(content, encoder, dataset, layer)
    plans, of_run = plans_and_run(names, None if params is None else content, given, named_values("--option", option), layers)
    if study is None:  # stages of studies fetch all kinds
        check_groups(content, {name: plan for name, plan in plans.items() if name in names}, runs_files=True)
    if (joined is None) != (joined_test is None):
        raise BeyondClsError("--joined and --joined-test go together: feature sets of the training and of the test images")
    pair = (open_features(joined, params), open_features(joined_test, params)) if joined and joined_test else None
    stores, place = (open_features(features, params), open_features(test, params)), choose_device(device)
    if dataset is not None:
        check_metric(described, dataset, stores[1].multilabel)
    subset, about = subset_of(stores[0], of_run)
    in_the_loop = None if loop is None else loop(stores[0])
    alone = len(plans) == 1 and study is None
    folders = {name: out if alone else out / name for name in plans}
    if alone:
        ((name, plan),) = plans.items()
        _check_same_head(out, name, plan)
    missing = absent_kinds(plans, stores[0], pair and pair[0]) if skip_absent else {}
    for name, kinds in missing.items() if is_first() else ():
        write_absent(folders[name], plans[name], kinds, *stores)
        typer.echo(f"{folders[name]}: not trained, {stores[0].attributes['encoder']} has no {' and no '.join(kinds)} tokens")
    plans = {name: plan for name, plan in plans.items() if name not in missing}
    single = next(iter(plans.values())) if plans and out in folders.values() else None
    if plans:
        of_encoder = stores[0].attributes["encoder"]
        about_heads = {name: {"encoder": of_encoder, **asdict(plan)} for name, plan in plans.items()}
        logged = {out.name if single else name: (folders[name], about_heads[name]) for name in plans}
        with (
            epoch_logs(log or logs_of(described), logged) as on_epoch,
            progress_bar(f"{of_encoder} {', '.join(plans)}", n_epochs(plans.values()), "epochs") as progress,
        ):
            try:
                written = probe(
                    *stores,
                    out,
                    single or plans,
                    joined=pair,
                    loop=in_the_loop,
                    subset=subset,
                    device=place,
                    progress=progress,
                    on_epoch=on_epoch,
                    say=typer.echo if is_first() else None,
                    notes={"command": recorded_command(without(without_engine(sys.argv[1:]), ["--log"])), **about},
                    timed=True,
                    retrain=retrain,
                    stops=stops,
                    **of_run,
                )
            except Stopped:
                return False
        if is_first():
            show_results({out if single else out / name: measures for name, measures in written.items()})
    if study is not None and is_first():
        for folder in remove_left_heads(out, study, folders, studies_of(described)):
            typer.echo(f"{folder}: removed, {study} no longer has this head")
    return True


def subset_of(store: FeatureStore, of_run: dict[str, Any]) -> tuple[np.ndarray | Draw | None, dict[str, Any]]:
    """Rows to train on, if not all, and their record in description.json; removes the parameters of subsets from `of_run`.

    Each seed of a head draws its own k images of each class, or its own percentage, unless there is a seed of the subset. Of a
    list of images, the record has a digest of its content, not its path.
    """
    k, percent, ids, seed = (of_run.pop(name, None) for name in ("k_shot", "percent", "ids", "subset_seed"))
    if ids is not None:
        named = read_ids(Path(ids))
        rows = rows_of_ids(store, named)
        if unusable := int((~store.labelled[rows]).sum()):
            typer.echo(f"{unusable:,} of {len(rows):,} images of {ids} have no label or could not be read, and are left out")
        digest = xxhash.xxh3_128_hexdigest("\n".join(named).encode())
        return rows, {"subset": {"ids": Path(ids).name, "n_ids": len(named), "n_unusable": unusable, "digest": digest}}
    if k is None and percent is None:
        return None, {}

    def draw(seed: int, rows: np.ndarray) -> np.ndarray:
        return percentage(store.labels, percent, seed, rows) if k is None else k_shot(store.labels, k, seed, rows)

    about = {**({"percent": percent} if k is None else {"k_shot": k}), "seed": "own" if seed is None else seed}
    return draw if seed is None else draw(seed, np.flatnonzero(store.labelled)), {"subset": about}


def _check_same_head(out: Path, name: str, plan: HeadPlan) -> None:
    """Refuse to replace a head by one of another kind, unless the folder has its name: then its kind was edited."""
    try:
        there = read_result(out / METRICS).get("aggregator", plan.head.aggregator)
    except (BeyondClsError, OSError, ValueError):  # nothing, or nothing that counts
        return
    if there != plan.head.aggregator and out.absolute().name != name:
        remedy = f"give --out {out / name}, name several heads in one command, or remove {out}"
        raise BeyondClsError(f"{out} holds a head, {there}, which {name} would replace, as single heads do; {remedy}")


def show_results(written: Mapping[Path, Mapping[str, Any]]) -> None:
    """Print results and their notes; notes on all heads are printed once."""
    notes_by_head = [measures["notes"] for measures in written.values()]
    shared_notes = [note for note in notes_by_head[0] if len(written) > 1 and all(note in notes for notes in notes_by_head)]
    for place, measures in written.items():
        typer.echo(f"{place}: {_summary(measures)}")
        for note in measures["notes"]:
            if note not in shared_notes:
                typer.echo(f"  note: {note}")
    for note in shared_notes:
        typer.echo(f"note on all: {note}")


def _summary(measures: Mapping[str, Any]) -> str:
    """The result of a head: `top-1 71.23 ± 0.12 % over 3 seeds, 10,000 test images`."""
    measure, words = ("map", "mAP") if "map" in measures else ("top1", "top-1")
    reached, n = measures[measure], len(measures["seeds"])
    spread = f"± {reached['std']:.2f} % over {n} seed{'s' * (n > 1)}" if n else f"% by {measures['protocol']['name']}"
    n_crops = measures["augmentation"]["n_crops"]
    crops = f", trained on {n_crops} random crop{'s' * (n_crops != 1)} of each image" if n_crops else ""
    if crops and measures["augmentation"]["evaluation_view"]:
        crops += " and its evaluation crop"
    return f"{words} {reached['mean']:.2f} {spread}, {measures['n_test']:,} test images{crops}"


def remove_left_heads(out: Path, study: str, heads: Collection[str], studies: Collection[str]) -> list[Path]:
    """Remove folders of heads in `out` that are no longer among the study's `heads`.

    They would appear in its tables. Only folders that a command with `--study` wrote are removed, no links, for this study or
    for one that is no longer among `studies`; and only files that `beyondcls probe` writes, and folders that are empty then.

    Returns:
        The folders that were removed.
    """
    removed = []
    for metrics in sorted(out.glob("*/metrics.json")):
        folder = metrics.parent
        is_elsewhere = folder.is_symlink() or (folder / "trained").is_symlink()
        if folder.name in heads or is_elsewhere or not _is_of(metrics, study, studies):
            continue
        for file in [file for pattern in FILES for file in folder.glob(pattern)]:
            file.unlink(missing_ok=True)
        for place in (folder / "trained", folder):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        removed.append(folder)
    return removed


def _is_of(metrics: Path, study: str, studies: Collection[str]) -> bool:
    """Whether a head was written for this study, for one that no longer exists, or records that nothing was trained."""
    try:
        content = read_result(metrics)
        if "absent" in content:
            return True
        words = shlex.split(content["command"])
        named = words[words.index("--study") + 1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False
    return named == study or named not in studies
