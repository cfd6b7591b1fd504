"""`beyondcls probe`: heads from feature sets, without the encoder."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters.common import common_layers
from pipelines.parameters.datasets import check_metric
from pipelines.parameters.groups import check_groups
from pipelines.parameters.heads import options_of, plans_and_run
from pipelines.parameters.left_heads import remove_left_heads
from pipelines.parameters.options import takes_options
from pipelines.parameters.params import read_params
from pipelines.parameters.studies import params_of_study, studies_of
from pipelines.parameters.training import OF_A_HEAD, OF_A_RECIPE, OF_A_RUN
from pipelines.process.tasks import is_first
from pipelines.sharing.places import open_features

if TYPE_CHECKING:
    import numpy as np

    from probe.grid import HeadPlan
    from store import FeatureStore


@takes_options(OF_A_RECIPE, OF_A_HEAD, OF_A_RUN)
def main(
    features: Annotated[str, typer.Option(help="feature set of the training images: its folder, receipt, or address")],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[
        Path, typer.Option(help="folder for probes, metrics and curves; one inside it for each of several heads, or of a study")
    ],
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="an aggregator, FILE.py:CLASS, or a name under heads in params.yaml; may be repeated  [default: abmilp]"
        ),
    ] = None,
    params: Annotated[
        Path | None, typer.Option(help="take heads.HEAD, probe and store from this file; options given here win")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="take what encoders.NAME in --params says of training, too")] = None,
    dataset: Annotated[str | None, typer.Option(help="take what datasets.NAME in --params says of training, too")] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="train all heads of STUDY (studies, block_studies in params.yaml), with its parameters, in place of --head; "
            "remove those in --out that it no longer has"
        ),
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="of the aggregator, e.g. --option depth=2; may be repeated")] = None,
    joined: Annotated[
        str | None, typer.Option(help="second feature set of the training images, for heads that read joined/…")
    ] = None,
    joined_test: Annotated[str | None, typer.Option(help="likewise of the test images")] = None,
    skip_absent: Annotated[
        bool,
        typer.Option(
            "--skip-absent",
            help="where the encoder lacks the tokens that a head reads ([cls] of I-JEPA), record that and go on",
        ),
    ] = False,
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain", help="also train heads that are in place, without checking whether their first steps are the same"
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    **given: Any,
) -> None:
    """Stage two: train heads on cached tokens; the encoder is not needed.

    All heads, seeds, learning rates and weight decays of one command train side by side, with one reading of the features.
    A run that was killed goes on when the same command is given again. Under torchrun, each process reads its own shards.

    A head that is already in --out, for exactly this request, stays as it is if a few of its steps, its schedule, the order of
    the images and its measures are unchanged: the program may have been edited. kept.json beside it says what was compared.
    """
    from pipelines.process.allocator import keep_freed_memory
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.run import n_epochs, probe
    from store import BeyondClsError

    described = None if params is None else read_params(params)
    _check_file(described, dataset=dataset, encoder=encoder, study=study)
    if study is not None and head:
        raise BeyondClsError(f"--study {study} and --head {head[0]} exclude each other: a study brings its own heads")
    asked, layer = (described, None) if study is None else params_of_study(described or {}, study)
    head = head or ["abmilp"] if study is None else list((asked or {})["heads"])
    layers = common_layers(asked or {}, encoder, dataset, layer)
    plans, of_run = plans_and_run(head, asked, given, options_of(option or []), layers)
    if study is None:  # stages of studies fetch all kinds
        check_groups(asked or {}, plans, runs_files=True)
    if (joined is None) != (joined_test is None):
        raise BeyondClsError("--joined and --joined-test go together: feature sets of the training and of the test images")
    pair = None
    if joined is not None and joined_test is not None:
        pair = open_features(joined, params), open_features(joined_test, params)
    keep_freed_memory()
    stores, place = (open_features(features, params), open_features(test, params)), choose_device(device)
    if dataset is not None:
        check_metric(described or {}, dataset, stores[1].multilabel)
    subset, about = _subset(stores[0], of_run)
    is_single, head_names = len(plans) == 1 and study is None, list(plans)
    if skip_absent:
        plans = _trainable(plans, stores, pair, lambda name: out if is_single else out / name)
    single = next(iter(plans.values())) if plans and is_single else None
    if plans:
        encoder = stores[0].attributes["encoder"]
        with progress_bar(f"{encoder} {', '.join(plans)}", n_epochs(plans.values()), "epochs") as progress:
            written = probe(
                *stores,
                out,
                single or plans,
                joined=pair,
                subset=subset,
                device=place,
                progress=progress,
                say=typer.echo if is_first() else None,
                notes={"command": shlex.join(["beyondcls", *sys.argv[1:]]), **about},
                timed=True,
                retrain=retrain,
                **of_run,
            )
        if is_first():
            _report({out if single else out / name: measures for name, measures in written.items()})
    if study is not None and is_first():
        for folder in remove_left_heads(out, study, head_names, studies_of(described or {})):
            typer.echo(f"{folder}: removed, {study} no longer has this head")


def _check_file(params: Mapping[str, Any] | None, **names: str | None) -> None:
    """Refuse names of a parameter file without the file.

    Raises:
        BeyondClsError: there is a name, but no file.
    """
    from store import BeyondClsError

    for option, name in names.items():
        if name is not None and params is None:
            raise BeyondClsError(f"--{option} {name} is in a parameter file; name it with --params, e.g. --params params.yaml")


def _trainable(
    plans: "Mapping[str, HeadPlan]",
    stores: "tuple[FeatureStore, FeatureStore]",
    joined: "tuple[FeatureStore, FeatureStore] | None",
    place: Callable[[str], Path],
) -> "dict[str, HeadPlan]":
    """Heads whose tokens exist; for each of the others, metrics.json and a message say that they don't."""
    from probe.absent import absent_kinds, write_absent

    missing = absent_kinds(plans, stores[0], joined and joined[0])
    for name, kinds in missing.items() if is_first() else ():
        write_absent(place(name), plans[name], kinds, *stores)
        typer.echo(f"{place(name)}: not trained, {stores[0].attributes['encoder']} has no {' and no '.join(kinds)} tokens")
    return {name: plan for name, plan in plans.items() if name not in missing}


def _report(written: Mapping[Path, Mapping[str, Any]]) -> None:
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
    crops = f", trained on {n_crops} random crop{'s' * (n_crops > 1)} of each image" if n_crops else ""
    if crops and measures["augmentation"]["evaluation_view"]:
        crops += " and its evaluation crop"
    return f"{words} {reached['mean']:.2f} {spread}, {measures['n_test']:,} test images{crops}"


def _subset(store: "FeatureStore", of_run: dict[str, Any]) -> "tuple[np.ndarray | None, dict[str, Any]]":
    """Rows to train on, if not all, and their record in metrics.json; removes the parameters of subsets from `of_run`."""
    import numpy as np

    from probe.subsets import k_shot, percentage

    k, percent, seed = of_run.pop("k_shot", None), of_run.pop("percent", None), of_run.pop("subset_seed", 0)
    if (ids := of_run.pop("ids", None)) is not None:
        return _listed(store, Path(ids))
    rows = np.flatnonzero(store.labelled)
    if k is not None:
        return k_shot(store.labels, k, seed, rows), {"subset": {"k_shot": k, "seed": seed}}
    if percent is not None:
        return percentage(store.labels, percent, seed, rows), {"subset": {"percent": percent, "seed": seed}}
    return None, {}


def _listed(store: "FeatureStore", file: Path) -> "tuple[np.ndarray, dict[str, Any]]":
    """Rows of the images that a file lists, and its record in metrics.json: a digest of its content, not its path.

    Raises:
        StoreError: no such file, or images that are not in the set.
    """
    import xxhash

    from store import read_ids, rows_of_ids

    named = read_ids(file)
    rows = rows_of_ids(store, named)
    if unusable := int((~store.labelled[rows]).sum()):
        typer.echo(f"{unusable:,} of {len(rows):,} images of {file} have no label or could not be read, and are left out")
    digest = xxhash.xxh3_128_hexdigest("\n".join(named).encode())
    return rows, {"subset": {"ids": file.name, "n_ids": len(named), "n_unusable": unusable, "digest": digest}}
