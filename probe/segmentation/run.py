"""Semantic segmentation from cached patch tokens: protocols, their selection and measures, and baselines."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int, Int16

from probe.checkpoint import Checkpoint, Unfinished
from probe.closed.protocol import Selection, edge_note
from probe.grid import Epoch, HeadPlan, Member
from probe.recipe import Recipe
from probe.segmentation.evaluate import GRID, Measured, Predicted, evaluate
from probe.segmentation.label_maps import LabelMaps, Resolution, Shown
from probe.segmentation.linear import NAME, SPEC, Trained, train_linear
from probe.segmentation.logistic import Logistic
from probe.segmentation.neighbours import Neighbours
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.patches import Patches
from probe.segmentation.sets import Sets
from store import BeyondClsError
from store.shown import Bars, no_bars

PROTOCOLS = ("knn", "logistic", "linear")
BASELINES = ("most-frequent-class", "drawn-by-prior")
# Peak learning rates of 0.002 to 0.032 at 16 images a step.
LINEAR = HeadPlan(
    SPEC,
    Recipe(epochs=20, batch_size=16, optimiser="adamw", base_lr=0.128, weight_decay=0.01, warmup_epochs=2),
    base_lrs=(0.032, 0.128, 0.512),
)


def most_frequent(counts: Int[np.ndarray, "K"], n: int, n_patches: int) -> Int16[np.ndarray, "n t"]:
    """The class with the most training patches, for every patch."""
    return np.full((n, n_patches), counts.argmax(), np.int16)


def drawn(counts: Int[np.ndarray, "K"], n: int, n_patches: int, seed: int = 0) -> Int16[np.ndarray, "n t"]:
    """Classes drawn by their share of the training patches, for each patch by itself."""
    generator = np.random.default_rng([seed, n, n_patches])
    return generator.choice(len(counts), size=(n, n_patches), p=counts / counts.sum()).astype(np.int16)


@dataclass(frozen=True)
class Protocols:
    """What is run, and the grid of each.

    Attributes:
        names: of PROTOCOLS.
        linear: recipe, seeds, learning rates and weight decays.
        loss_size: shorter side, in pixels, of the frame in which the linear head's loss is computed.
    """

    names: tuple[str, ...] = PROTOCOLS
    knn: Neighbours = field(default_factory=Neighbours)
    logistic: Logistic = field(default_factory=Logistic)
    linear: HeadPlan = LINEAR
    loss_size: int = 224


@dataclass
class Outcome:
    """One protocol: its models, with its chosen setting, and how it was chosen.

    Attributes:
        models: one, or one a seed.
        chosen: setting, by name.
        trained: of the linear head.
        measured: of each model, on the test images.
    """

    models: list[Predicted]
    chosen: dict[str, Any]
    selection: Selection[Any] | None = None
    seeds: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    seconds: float = 0.0
    measured: list[Measured] = field(default_factory=list)


@dataclass
class Result:
    """All protocols and baselines on the test images.

    Attributes:
        shown: what views show of the labelled pixels; None if only patches were compared.
    """

    outcomes: dict[str, Outcome]
    shown: Shown | None


def segment(
    sets: Sets,
    protocols: Protocols,
    resolutions: Sequence[Resolution] = ("original",),
    *,
    unfinished: Unfinished | None = None,
    bars: Bars = no_bars,
    say: Callable[[str], None] = lambda message: None,
    on_epoch: Callable[[Epoch], None] | None = None,
    keep: Callable[[str, int, np.ndarray], None] | None = None,
) -> Result:
    """Run protocols, select their settings on held-out training images or a validation set, and measure them on test images.

    Args:
        resolutions: at which label maps are compared, beside patch by patch.
        unfinished: for checkpoints of the linear head, with which an interrupted run goes on.
        bars: (what, total, unit) to a context that gives a function to report progress by.
        on_epoch: called after each epoch of each member of the linear head, as of `probe`.
        keep: called with a protocol, a row of the test set and its predicted label map, in pixels of the first resolution.

    Raises:
        BeyondClsError: too few labelled patches or classes, or a linear head that diverged.
    """
    run: dict[str, Callable[[], Outcome]] = {
        "knn": lambda: _neighbours(sets, protocols.knn, bars),
        "logistic": lambda: _logistic(sets, protocols.logistic, bars),
        "linear": lambda: _linear(sets, protocols, unfinished, bars, {"say": say, "on_epoch": on_epoch}),
    }
    outcomes = {}
    for name in protocols.names:
        began = time.perf_counter()
        outcomes[name] = run[name]()
        outcomes[name].seconds = time.perf_counter() - began
    counts, shape = sets.learnt.counts, (len(sets.tested), sets.tested.n_patches)
    outcomes[BASELINES[0]] = Outcome([Predicted(most_frequent(counts, *shape))], {"class": sets.classes[int(counts.argmax())]})
    outcomes[BASELINES[1]] = Outcome([Predicted(drawn(counts, *shape))], {"seed": 0})
    models = {(name, i): model for name, outcome in outcomes.items() for i, model in enumerate(outcome.models)}
    first = lambda model, row, label_map: keep(model[0], row, label_map) if keep and model[1] == 0 else None  # noqa: E731
    with bars("measure", len(sets.tested), "images") as progress:
        maps = LabelMaps(sets.test) if resolutions else None
        measured, shown = evaluate(sets.tested, models, resolutions, maps, first if keep else None, progress)
    for name, outcome in outcomes.items():
        outcome.measured = [measured[name, i] for i in range(len(outcome.models))]
    return Result(outcomes, shown)


def _grid_mious(judge: Patches, models: Mapping[Any, Predicted]) -> dict[Any, float]:
    measured, _ = evaluate(judge, models)
    return {name: of_model.confusions[GRID].miou for name, of_model in measured.items()}


def _neighbours(sets: Sets, protocol: Neighbours, bars: Bars) -> Outcome:
    grid, selection = protocol.grid, None
    if len(grid) > 1:
        learn, judge = sets.compared
        with bars("k-NN, selection", learn.n_labelled * len(judge) * judge.n_patches, "pairs") as progress:
            predicted = protocol.predict(learn, judge, grid, progress)
        mious = _grid_mious(judge, {setting: Predicted(labels) for setting, labels in predicted.items()})
        selection = Selection(sets.selected_on, "miou_grid", len(judge), tuple(grid), tuple(mious[s] for s in grid))
    metric, k = best = selection.best if selection else grid[0]
    learn, test = sets.learnt, sets.tested
    with bars("k-NN", learn.n_labelled * len(test) * test.n_patches, "pairs") as progress:
        predicted = protocol.predict(learn, test, [best], progress)
    return Outcome([Predicted(predicted[best])], {"metric": metric, "k": k}, selection, notes=[*edge_note("k", k, protocol.ks)])


def _logistic(sets: Sets, protocol: Logistic, bars: Bars) -> Outcome:
    selection: Selection[Any] | None = None
    notes: list[str] = []
    heads: dict[float, PatchHead] = {}
    if len(protocol.cs) > 1:
        learn, judge = sets.compared
        with bars("logistic, selection", protocol.max_passes, "passes, at most") as progress:
            heads, notes = protocol.fit(learn, protocol.cs, progress)
        mious = _grid_mious(judge, {c: Predicted(head=head.to(judge.device)) for c, head in heads.items()})
        selection = Selection(sets.selected_on, "miou_grid", len(judge), protocol.cs, tuple(mious[c] for c in protocol.cs))
    c = selection.best if selection else protocol.cs[0]
    if c not in heads or sets.validation is None:
        with bars("logistic", protocol.max_passes, "passes, at most") as progress:
            heads, more = protocol.fit(sets.learnt, [c], progress)
            notes += more
    notes += edge_note("C", c, protocol.cs)
    return Outcome([Predicted(head=heads[c].to(sets.device), interpolated=False)], {"c": c}, selection, notes=notes)


def _linear(sets: Sets, protocols: Protocols, unfinished: Unfinished | None, bars: Bars, calls: Mapping[str, Any]) -> Outcome:
    plan, selection = protocols.linear, None
    trained: list[Trained] = []
    grid = [Member(NAME, *setting, seed) for setting in plan.settings for seed in plan.seeds]
    if len(plan.settings) > 1:
        learn, judge = sets.compared
        trained, lost = _trained(sets, protocols, learn, grid, unfinished, bars, calls, "selection")
        mious = _grid_mious(judge, {t.member: Predicted(head=t.head.to(judge.device)) for t in trained})
        means = tuple(_mean_over_seeds(setting, plan.seeds, mious) for setting in plan.settings)
        if all(np.isnan(mean) for mean in means):
            raise BeyondClsError(
                f"the linear head diverged with every setting: {', '.join(lost.values())}; give lower base_lrs"
            )
        selection = Selection(sets.selected_on, "miou_grid", len(judge), tuple(plan.settings), means)
    base_lr, weight_decay = selection.best if selection else plan.settings[0]
    members = [Member(NAME, base_lr, weight_decay, seed) for seed in plan.seeds]
    if selection is None or sets.validation is None:
        trained, lost = _trained(sets, protocols, sets.learnt, members, unfinished, bars, calls, "training")
        if lost:
            raise BeyondClsError(f"{next(iter(lost))} {next(iter(lost.values()))}")
    by_member = {t.member: t for t in trained}
    chosen = [by_member[member] for member in members]
    notes = [*edge_note("base_lr", base_lr, plan.base_lrs), *edge_note("weight_decay", weight_decay, plan.weight_decays)]
    models = [Predicted(head=t.head.to(sets.device)) for t in chosen]
    setting = {"base_lr": base_lr, "weight_decay": weight_decay}
    return Outcome(models, setting, selection, plan.seeds, notes, chosen)


def _trained(
    sets: Sets,
    protocols: Protocols,
    patches: Patches,
    members: list[Member],
    unfinished: Unfinished | None,
    bars: Bars,
    calls: Mapping[str, Any],
    stage: str,
) -> tuple[list[Trained], dict[Member, str]]:
    recipe = protocols.linear.recipe
    described = [
        [asdict(member) for member in members],
        asdict(recipe),
        protocols.loss_size,
        [sets.training.spec.key, patches.source.block, patches.rows.tolist(), list(sets.views), patches.final_norm is not None],
    ]
    checkpoint = None if unfinished is None else Checkpoint(unfinished.path_of(described))
    what = "linear" if stage == "training" else "linear, selection"
    with bars(what, recipe.epochs * len(members), "epochs") as progress:
        return train_linear(
            patches.placed(sets.placement),
            sets.training_maps,
            protocols.loss_size,
            members,
            recipe,
            workers=sets.workers,
            checkpoint=checkpoint,
            progress=progress,
            stage=stage,
            **calls,
        )


def _mean_over_seeds(setting: tuple[float, float], seeds: Sequence[int], mious: Mapping[Any, float]) -> float:
    """NaN where a seed diverged."""
    return float(np.mean([mious.get(Member(NAME, *setting, seed), np.nan) for seed in seeds]))
