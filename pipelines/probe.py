"""`beyondcls probe`: heads from feature sets, without the encoder."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters.engine import ENGINE
from pipelines.parameters.extraction import IMAGES, RUNNING, Data
from pipelines.parameters.features import FEATURES
from pipelines.parameters.options import flag_of, select_options, takes_options, with_defaults
from pipelines.parameters.stages import PARAMS
from pipelines.parameters.training import LOGGING, OF_A_HEAD, OF_A_PROTOCOL, OF_A_RECIPE, OF_A_RUN
from probe.recipe import Recipe
from store import BeyondClsError
from store.errors import unknown

if TYPE_CHECKING:
    from pipelines.engines.engine import Engine
    from pipelines.probing.loop import EncoderLoop
    from store import FeatureStore

LOOPING = (*RUNNING, "drop_path")
FRESH, EVALUATION = "fresh", "evaluation"  # crops of training images with the encoder in the loop
OF_THE_LOOP = {
    **{n: o for n, o in IMAGES.items() if n not in OF_A_RUN},
    "workers": RUNNING["workers"],
    "drop_path": FEATURES["drop_path"],
}


@takes_options(with_defaults(OF_A_RECIPE, Recipe), OF_A_HEAD, OF_A_PROTOCOL, OF_A_RUN, LOGGING, ENGINE, OF_THE_LOOP)
def main(
    features: Annotated[
        str | None, typer.Option(help="feature set of the training images: its folder, receipt, or address")
    ] = None,
    test: Annotated[str | None, typer.Option(help="feature set of the test images, of the same encoder")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="folder for probes, metrics and curves; one inside it for each of several heads, or of a study"),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="an aggregator, FILE.py:CLASS, or a name under heads in params.yaml; its own options may follow: "
            "ap:heads=12,epochs=20, or NAME=ap:heads=12, which names its folder; may be repeated  [default: abmilp]"
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
    every: Annotated[
        bool,
        typer.Option(
            "--every",
            help="all heads and studies that the stages of dvc.yaml train, each with its own --features, --test and --out; "
            "--dataset, --encoder, --head and --study choose some of them",
        ),
    ] = False,
    option: Annotated[list[str] | None, typer.Option(help="of the aggregator, e.g. --option depth=2; may be repeated")] = None,
    joined: Annotated[
        str | None, typer.Option(help="second feature set of the training images, for heads that read joined/…")
    ] = None,
    joined_test: Annotated[str | None, typer.Option(help="second feature set of the test images, for such heads")] = None,
    in_the_loop: Annotated[
        str | None,
        typer.Option(
            help="compute tokens of the training images in each epoch, with the encoder of --features (or --encoder, as "
            "--params has it), from the images of --data, or of --dataset: fresh, of a new random crop of each, as the paper "
            "trains; or evaluation, of the evaluation crop"
        ),
    ] = None,
    data: Data = None,
    skip_absent: Annotated[
        bool,
        typer.Option(
            "--skip-absent",
            help="where the encoder lacks the tokens that a head reads ([cls] of I-JEPA), record that and go on",
        ),
    ] = False,
    retrain: Annotated[
        bool,
        typer.Option("--retrain", help="also train heads that are in place and were trained from the same request"),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    script: Annotated[Path | None, typer.Option(help="with --on slurm: write the script for sbatch here, and end")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="with --on slurm: print the script for sbatch, and end")] = False,
    **given: Any,
) -> None:
    """Stage two: train heads on cached tokens; the encoder is not needed.

    All heads, seeds, learning rates and weight decays of one command train side by side, with one reading of the features.
    A run that was killed goes on when the same command is given again. Under torchrun, each process reads its own shards.

    --on has other processes train: each of several heads is then a run of its own, with a GPU of its own. With --every, the
    runs are those of dvc.yaml; `dvc repro` finds them done then. Heads of the same feature sets share a run, and one reading of
    the features, as long as no process is left without one.

    --in-the-loop fresh is the paper's own protocol: the encoder runs once in each epoch, for all that trains side by side. Test
    images, and what describes the training images, are still read from feature sets.

    A head that is already in --out and was trained from exactly this request, by training as it is now, stays as it is.
    """
    from pipelines.engines.processes import Here, LocalProcesses
    from pipelines.engines.slurm import check_script
    from pipelines.probing.spread import every_run, runs_of, spread
    from pipelines.process.tasks import TO_BE_CONTINUED, stops_at_signal

    of_training = {name: value for name, value in given.items() if name not in {**ENGINE, **LOGGING, **OF_THE_LOOP}}
    images, logs = {"data": data, **select_options(given, OF_THE_LOOP)}, given.get("log", [])
    named = {"dataset": dataset, "encoder": encoder, "study": study}
    places: dict[str, Any] = {"features": features, "test": test, "out": out}
    pair: dict[str, Any] = {"joined": joined, "joined_test": joined_test}
    _check_loop(in_the_loop, images)
    engine = _engine(params, every, given, device)
    check_script(engine, script, dry_run)
    if study is not None and head:
        raise BeyondClsError(f"--study {study} and --head {head[0]} exclude each other: a study brings its own heads")
    if every:
        of_one = {"in_the_loop": in_the_loop, **images, "option": option, "skip_absent": skip_absent}
        for name, value in {**places, **pair, **of_one, **of_training}.items():
            if value not in (None, False, []):  # with other values than the stages' `dvc repro` would train again
                raise BeyondClsError(
                    f"{flag_of(name)} {value} was given beside --every, whose runs are as dvc.yaml and params.yaml say; "
                    "leave it out, and change it there"
                )
        chosen = {flag_of(name): [value] for name, value in named.items() if value} | {"--head": head or []}
        beside = [*(["--device", device] if device != "auto" else []), *(["--retrain"] if retrain else [])]
        runs = every_run(chosen, params, [*beside, *(word for name in logs for word in ("--log", name))], engine.n_places)
    else:
        _check_asked(params, named, places)
        runs = runs_of(sys.argv[1:], head or [] if study is None else [], places["out"])
    stops = stops_at_signal()
    # Heads that this process trains share one reading of the features; and one run needs no other process than this.
    if every or not (isinstance(engine, Here) or (isinstance(engine, LocalProcesses) and len(runs) == 1)):
        finished = spread(engine, runs, script, dry_run, stops)
    else:
        from pipelines.probing.training import train_heads

        how: dict[str, Any] = {"skip_absent": skip_absent, "retrain": retrain, "device": device, "log": logs}
        how["loop"] = in_the_loop and partial(_loop, encoder, data, dataset, params, images, in_the_loop == FRESH)
        asked: dict[str, Any] = {"head": head or ["abmilp"], "option": option or [], "given": of_training, **named}
        finished = train_heads(stops, params=params, **places, **pair, **asked, **how)
        if not finished:
            typer.echo(f"{out}: stopped after an epoch (SIGUSR1); the same command goes on", err=True)
    if not finished:
        raise typer.Exit(TO_BE_CONTINUED)


def _check_loop(in_the_loop: str | None, beside: Mapping[str, Any]) -> None:
    """Refuse what concerns the encoder in the loop without that."""
    if in_the_loop is None:
        for name, value in beside.items():
            if value is not None:
                raise BeyondClsError(
                    f"{flag_of(name)} {value} concerns images, but heads train from cached features; leave it out, or give "
                    f"--in-the-loop {FRESH}"
                )
    elif in_the_loop not in (FRESH, EVALUATION):
        raise BeyondClsError(unknown("value of --in-the-loop", in_the_loop, (FRESH, EVALUATION)))


def _loop(
    encoder: str | None,
    data: str | None,
    dataset: str | None,
    params: Path | None,
    given: Mapping[str, Any],
    fresh: bool,
    training: "FeatureStore",
) -> "EncoderLoop":
    """The images and the encoder of the training features, as the parameter file and the command line name them."""
    from extract.datasets import open_images
    from extract.encoders.encoder import AMP_OF
    from pipelines.live.online import load_as_recorded
    from pipelines.parameters.extraction import from_params
    from pipelines.parameters.requested import requested_images
    from pipelines.probing.loop import EncoderLoop
    from pipelines.process.progress import progress_bar

    name = encoder or str(training.attributes["encoder"])
    if dataset is not None and data is None and given.get("split") is None:
        given = {**given, "split": "train"}
    source, opening = requested_images(name, data, None if data else dataset, params, given)
    loading, options = from_params(params if encoder else None, name, None if data else dataset)
    frozen = load_as_recorded(name, {"transform": training.spec.transform}, loading)
    amp = AMP_OF.get(training.spec.compute_dtype, "none")
    frozen.run_with(**{**select_options(options, ("channels_last", "compile")), "amp": amp})
    running = {**select_options(options, LOOPING if fresh else RUNNING), **select_options(given, LOOPING)}
    warn = lambda message: typer.echo(message, err=True)  # noqa: E731
    return EncoderLoop(frozen, open_images(source, **opening, bars=progress_bar), training, fresh, warn=warn, **running)


def _engine(params: Path | None, every: bool, given: Mapping[str, Any], device: str) -> "Engine":
    """Where runs are computed, as the command line says, or else the parameter file."""
    from pipelines.engines import choose_engine
    from pipelines.parameters.layers import engine_of
    from pipelines.parameters.params import read_params
    from pipelines.process.tasks import is_task

    if every and is_task():
        raise BeyondClsError(
            "--every starts a process for each run itself, and this is one of several (torchrun); leave one out"
        )
    file = PARAMS if params is None and every and PARAMS.is_file() else params
    options = {} if file is None else engine_of(read_params(file))
    named = select_options(given, ENGINE)
    return choose_engine(options | named, named, device, is_task())


def _check_asked(params: Path | None, named: Mapping[str, str | None], places: Mapping[str, Any]) -> None:
    """Refuse names of a parameter file without the file, and a run that does not say what it reads and writes."""
    for option, name in named.items():
        if name is not None and params is None:
            raise BeyondClsError(f"--{option} {name} is in a parameter file; name it with --params, e.g. --params params.yaml")
    if missing := [flag_of(name) for name, value in places.items() if value is None]:
        raise BeyondClsError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: give feature sets as --features and "
            "--test, and a folder for results as --out; or --every, for all that dvc.yaml trains"
        )
