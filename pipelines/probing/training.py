"""Heads trained by this process, as `beyondcls probe` asks."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from pipelines.parameters.datasets import check_metric
from pipelines.parameters.engine import without, without_engine
from pipelines.parameters.groups import check_groups
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.layers import common_layers, logs_of
from pipelines.parameters.left_heads import remove_left_heads
from pipelines.parameters.params import named_values, read_params
from pipelines.parameters.studies import params_of_study, studies_of
from pipelines.probing.results import show_results
from pipelines.probing.subset import subset_of
from pipelines.process.allocator import keep_freed_memory
from pipelines.process.command_log import recorded_command
from pipelines.process.device import choose_device
from pipelines.process.epoch_logs import epoch_logs
from pipelines.process.progress import progress_bar
from pipelines.process.tasks import is_first
from pipelines.sharing.places import open_features
from probe.absent import absent_kinds, write_absent
from probe.checkpoint import Stopped
from probe.grid import HeadPlan
from probe.passes import Loop
from probe.run import n_epochs, probe
from store import BeyondClsError, FeatureStore


@dataclass(frozen=True)
class Request:
    """What the command line asks for, as its help says.

    Attributes:
        loop: makes the encoder in the loop, for the feature set of the training images; None: features are read.
        log: names of logs; none: those of the parameter file.
        given: options of OF_A_RECIPE, OF_A_HEAD, OF_A_PROTOCOL and OF_A_RUN.
    """

    features: str
    test: str
    out: Path
    head: Sequence[str]
    params: Path | None
    encoder: str | None
    dataset: str | None
    study: str | None
    option: Sequence[str]
    joined: str | None
    joined_test: str | None
    skip_absent: bool
    retrain: bool
    device: str
    log: Sequence[str]
    loop: Callable[[FeatureStore], Loop] | None
    given: Mapping[str, Any]


def train_heads(asked: Request, stops: Callable[[], bool]) -> bool:
    """Train heads, or see that they are in place; whether that was finished.

    Args:
        stops: whether to stop after an epoch.

    Raises:
        BeyondClsError: names that the parameter file does not have, values that exclude each other, and as `probe.run.probe`.
    """
    described = None if asked.params is None else read_params(asked.params)
    study, out = asked.study, asked.out
    content, layer = (described, None) if study is None else params_of_study(described or {}, study)
    names = asked.head if study is None else list((content or {})["heads"])
    layers = common_layers(content or {}, asked.encoder, asked.dataset, layer)
    plans, of_run = plans_and_run(names, content, asked.given, named_values("--option", asked.option), layers)
    if study is None:  # stages of studies fetch all kinds
        check_groups(content or {}, {name: plan for name, plan in plans.items() if name in names}, runs_files=True)
    pair = _joined(asked)
    keep_freed_memory()
    stores = open_features(asked.features, asked.params), open_features(asked.test, asked.params)
    place = choose_device(asked.device)
    if asked.dataset is not None:
        check_metric(described or {}, asked.dataset, stores[1].multilabel)
    subset, about = subset_of(stores[0], of_run)
    loop = None if asked.loop is None else asked.loop(stores[0])
    is_single, head_names = len(plans) == 1 and study is None, list(plans)
    if asked.skip_absent:
        plans = _trainable(plans, stores, pair, lambda name: out if is_single else out / name)
    single = next(iter(plans.values())) if plans and is_single else None
    if plans:
        encoder = stores[0].attributes["encoder"]
        logged = {
            out.name if single else name: (out if single else out / name, {"encoder": encoder, **asdict(plan)})
            for name, plan in plans.items()
        }
        with (
            epoch_logs(asked.log or logs_of(described or {}), logged) as on_epoch,
            progress_bar(f"{encoder} {', '.join(plans)}", n_epochs(plans.values()), "epochs") as progress,
        ):
            try:
                written = probe(
                    *stores,
                    out,
                    single or plans,
                    joined=pair,
                    loop=loop,
                    subset=subset,
                    device=place,
                    progress=progress,
                    on_epoch=on_epoch,
                    say=typer.echo if is_first() else None,
                    notes={"command": recorded_command(without(without_engine(sys.argv[1:]), ["--log"])), **about},
                    timed=True,
                    retrain=asked.retrain,
                    stops=stops,
                    **of_run,
                )
            except Stopped:
                return False
        if is_first():
            show_results({out if single else out / name: measures for name, measures in written.items()})
    if study is not None and is_first():
        for folder in remove_left_heads(out, study, head_names, studies_of(described or {})):
            typer.echo(f"{folder}: removed, {study} no longer has this head")
    return True


def _joined(asked: Request) -> tuple[FeatureStore, FeatureStore] | None:
    """The second pair of feature sets.

    Raises:
        BeyondClsError: there is one of the two.
    """
    if (asked.joined is None) != (asked.joined_test is None):
        raise BeyondClsError("--joined and --joined-test go together: feature sets of the training and of the test images")
    if asked.joined is None or asked.joined_test is None:
        return None
    return open_features(asked.joined, asked.params), open_features(asked.joined_test, asked.params)


def _trainable(
    plans: Mapping[str, HeadPlan],
    stores: tuple[FeatureStore, FeatureStore],
    joined: tuple[FeatureStore, FeatureStore] | None,
    place: Callable[[str], Path],
) -> dict[str, HeadPlan]:
    """Heads whose tokens exist; for each of the others, metrics.json and a message say that they don't."""
    missing = absent_kinds(plans, stores[0], joined and joined[0])
    for name, kinds in missing.items() if is_first() else ():
        write_absent(place(name), plans[name], kinds, *stores)
        typer.echo(f"{place(name)}: not trained, {stores[0].attributes['encoder']} has no {' and no '.join(kinds)} tokens")
    return {name: plan for name, plan in plans.items() if name not in missing}
