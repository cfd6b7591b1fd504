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
from probe.segmentation.evaluate import GRID, Confusions, ModelPredictions, evaluate
from probe.segmentation.label_maps import LabelMapsOfView, Resolution
from probe.segmentation.linear import NAME, SPEC, TrainedMember, train_linear
from probe.segmentation.logistic import PatchLogistic
from probe.segmentation.neighbours import PatchNeighbours
from probe.segmentation.patches import Patches
from probe.segmentation.sets import Sets
from store import BeyondClsError
from store.shown import Bars, no_bars

Models = Mapping[Any, list[ModelPredictions]]  # of each setting, one or one a seed; none of a setting with which one diverged
PROTOCOLS = ("knn", "logistic", "linear")
BASELINES = ("most-frequent-class", "drawn-by-prior")
# Peak learning rates of 0.002 to 0.032 at 16 images a step.
LINEAR = HeadPlan(
    SPEC,
    Recipe(epochs=20, batch_size=16, optimiser="adamw", base_lr=0.128, weight_decay=0.01, warmup_epochs=2),
    base_lrs=(0.032, 0.128, 0.512),
)


def drawn(counts: Int[np.ndarray, "K"], n: int, n_patches: int) -> Int16[np.ndarray, "n t"]:
    """Classes drawn by their share of the training patches, for each patch by itself."""
    generator = np.random.default_rng([0, n, n_patches])
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
    knn: PatchNeighbours = field(default_factory=PatchNeighbours)
    logistic: PatchLogistic = field(default_factory=PatchLogistic)
    linear: HeadPlan = LINEAR
    loss_size: int = 224


@dataclass
class ProtocolOutcome:
    """One protocol: its models, with its chosen setting, and how it was chosen.

    Attributes:
        models: one, or one a seed.
        chosen: setting, by name.
        trained: of the linear head.
        measured: of each model, on the test images.
    """

    models: list[ModelPredictions]
    chosen: dict[str, Any]
    selection: Selection[Any] | None = None
    seeds: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    trained: list[TrainedMember] = field(default_factory=list)
    seconds: float = 0.0
    measured: list[Confusions] = field(default_factory=list)


@dataclass
class SegmentationResult:
    """All protocols and baselines on the test images.

    Attributes:
        shown: what views show of the labelled pixels (`shown_of`); None if only patches were compared.
    """

    outcomes: dict[str, ProtocolOutcome]
    shown: dict[str, Any] | None


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
) -> SegmentationResult:
    """Run protocols, select their settings on held-out training images or a validation set, and measure them on test images.

    Args:
        resolutions: at which label maps are compared, in addition to patch by patch.
        unfinished: for checkpoints of the linear head, with which an interrupted run goes on.
        bars: (what, total, unit) to a context that gives a function to report progress by.
        on_epoch: called after each epoch of each member of the linear head, as of `probe`.
        keep: called with a protocol, a row of the test set and its predicted label map, in pixels of the first resolution.

    Raises:
        BeyondClsError: too few labelled patches or classes, a linear head that diverged, or a resolution without windows.
    """
    if sets.test.spec.has_windows and (frames := [one for one in resolutions if one != "original"]):
        raise BeyondClsError(
            f"at is {frames[0]}, but views of {sets.test.where} are windows, which have no frame in common; expected original"
        )
    run: dict[str, Callable[[], ProtocolOutcome]] = {
        "knn": lambda: _run_neighbours(sets, protocols.knn, bars),
        "logistic": lambda: _run_logistic(sets, protocols.logistic, bars),
        "linear": lambda: _run_linear(sets, protocols, unfinished, bars, {"say": say, "on_epoch": on_epoch}),
    }
    outcomes = {}
    for name in protocols.names:
        began = time.perf_counter()
        outcomes[name] = run[name]()
        outcomes[name].seconds = time.perf_counter() - began
    counts, shape = sets.learnt.counts, (len(sets.tested), sets.tested.n_patches)
    most_frequent = int(counts.argmax())  # of the training patches
    constant = ModelPredictions(np.full(shape, most_frequent, np.int16))
    outcomes[BASELINES[0]] = ProtocolOutcome([constant], {"class": sets.classes[most_frequent]})
    outcomes[BASELINES[1]] = ProtocolOutcome([ModelPredictions(drawn(counts, *shape))], {"seed": 0})
    models = {(name, i): model for name, outcome in outcomes.items() for i, model in enumerate(outcome.models)}
    first = lambda model, row, label_map: keep(model[0], row, label_map) if keep and model[1] == 0 else None  # noqa: E731
    with bars("measure", len(sets.tested), "images") as progress:
        maps = LabelMapsOfView(sets.test) if resolutions else None
        measured, shown = evaluate(sets.tested, models, resolutions, maps, first if keep else None, progress)
    for name, outcome in outcomes.items():
        outcome.measured = [measured[name, i] for i in range(len(outcome.models))]
    return SegmentationResult(outcomes, shown)


def _select_setting(
    sets: Sets, settings: Sequence[Any], fit: Callable[[Patches, Patches, Sequence[Any], str], Models]
) -> tuple[Any, list[ModelPredictions], Selection[Any] | None]:
    """The best setting by miou_grid (mean over seeds), its models from all training images, and how it was selected.

    Args:
        fit: makes models, given patches to learn from, patches to predict, settings, and the stage: "selection" or "training".
    """
    models: Models = {}
    selection: Selection[Any] | None = None
    if len(settings) > 1:
        learn, judge = sets.compared
        models = fit(learn, judge, settings, "selection")
        measured, _ = evaluate(judge, {(s, i): model for s, of_seeds in models.items() for i, model in enumerate(of_seeds)})
        mious = {s: [measured[s, i][GRID].miou for i in range(len(of_seeds))] for s, of_seeds in models.items()}
        means = tuple(float(np.mean(mious[setting])) if setting in mious else float("nan") for setting in settings)
        selected_on = "hold-out" if sets.validation is None else "validation set"
        selection = Selection(selected_on, "miou_grid", len(judge), tuple(settings), means)
    best = selection.best if selection else settings[0]
    if best not in models or sets.validation is None or models[best][0].labels is not None:  # labels are of other images
        models = fit(sets.learnt, sets.tested, [best], "training")
    return best, models[best], selection


def _stage_title(name: str, stage: str) -> str:
    return name if stage == "training" else f"{name}, {stage}"


def _run_neighbours(sets: Sets, protocol: PatchNeighbours, bars: Bars) -> ProtocolOutcome:
    def fit(learn: Patches, judge: Patches, settings: Sequence[tuple[str, int]], stage: str) -> Models:
        with bars(_stage_title("k-NN", stage), learn.n_labelled * len(judge) * judge.n_patches, "pairs") as progress:
            labels = protocol.predict(learn, judge, settings, progress)
        return {setting: [ModelPredictions(of_setting)] for setting, of_setting in labels.items()}

    (metric, k), models, selection = _select_setting(sets, protocol.grid, fit)
    return ProtocolOutcome(models, {"metric": metric, "k": k}, selection, notes=[*edge_note("k", k, protocol.ks)])


def _run_logistic(sets: Sets, protocol: PatchLogistic, bars: Bars) -> ProtocolOutcome:
    notes: list[str] = []

    def fit(learn: Patches, judge: Patches, settings: Sequence[float], stage: str) -> Models:
        with bars(_stage_title("logistic", stage), protocol.max_passes, "passes, at most") as progress:
            heads, of_fit = protocol.fit(learn, settings, progress)
        notes.extend(of_fit)
        return {c: [ModelPredictions(head=head.to(sets.device), interpolated=False)] for c, head in heads.items()}

    c, models, selection = _select_setting(sets, protocol.cs, fit)
    return ProtocolOutcome(models, {"c": c}, selection, notes=[*notes, *edge_note("C", c, protocol.cs)])


def _run_linear(
    sets: Sets, protocols: Protocols, unfinished: Unfinished | None, bars: Bars, calls: Mapping[str, Any]
) -> ProtocolOutcome:
    plan, recipe = protocols.linear, protocols.linear.recipe
    trained: dict[Member, TrainedMember] = {}

    def fit(learn: Patches, judge: Patches, settings: Sequence[tuple[float, float]], stage: str) -> Models:
        members = [Member(NAME, *setting, seed) for setting in settings for seed in plan.seeds]
        described = [
            [asdict(member) for member in members],
            asdict(recipe),
            protocols.loss_size,
            [sets.training.spec.key, learn.source.block, learn.rows.tolist(), list(sets.views), learn.final_norm is not None],
        ]
        checkpoint = None if unfinished is None else Checkpoint(unfinished.path_of(described))
        options = {"workers": sets.workers, "checkpoint": checkpoint, "stage": stage, **calls}
        with bars(_stage_title("linear", stage), recipe.epochs * len(members), "epochs") as progress:
            placed, options["progress"] = learn.placed(sets.placement), progress
            heads, lost = train_linear(placed, sets.training_maps, protocols.loss_size, members, recipe, **options)
        trained.update({one.member: one for one in heads})
        whole = [s for s in settings if not any((m.base_lr, m.weight_decay) == s for m in lost)]
        if lost and stage == "training":
            raise BeyondClsError(f"{next(iter(lost))} {next(iter(lost.values()))}")
        if not whole:
            raise BeyondClsError(
                f"the linear head diverged with every setting: {', '.join(lost.values())}; give lower base_lrs"
            )
        of_setting = {s: [trained[Member(NAME, *s, seed)].head.to(sets.device) for seed in plan.seeds] for s in whole}
        return {setting: [ModelPredictions(head=head) for head in of_seeds] for setting, of_seeds in of_setting.items()}

    (base_lr, weight_decay), models, selection = _select_setting(sets, plan.settings, fit)
    notes = [*edge_note("base_lr", base_lr, plan.base_lrs), *edge_note("weight_decay", weight_decay, plan.weight_decays)]
    chosen = [trained[Member(NAME, base_lr, weight_decay, seed)] for seed in plan.seeds]
    setting = {"base_lr": base_lr, "weight_decay": weight_decay}
    return ProtocolOutcome(models, setting, selection, plan.seeds, notes, chosen)
