"""Learning rates and weight decays are chosen on training images that are held out."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from probe.grid import HeadPlan, Member
from probe.head import Head
from probe.passes import HeadPasses, Outcome
from probe.recipe import Recipe
from probe.subsets import hold_out
from store import BeyondClsError

SEED = 0  # of the images that are held out
N_SEEDS = 3  # of a head, that each setting is tried with
ENOUGH = 10_000  # held-out images, which resolve half a point; with fewer each seed is judged by others
COLLAPSED = math.log(2)  # nats: below, weights are on fewer than two patches on average, and what they chose is hardly learned


@dataclass(frozen=True)
class Tried:
    """A setting on the images that were held out.

    Attributes:
        percent: results of the seeds that did not diverge.
        error: standard error of its distance from the best setting, percentage points: over images, and over seeds; None where
            images have several labels.
        collapsed: whether some seed's weights are on fewer than two patches on average (entropy below ln 2).
    """

    percent: tuple[float, ...]
    error: float | None = None
    collapsed: bool = False


@dataclass(frozen=True)
class Selected:
    """The setting that a head is trained with, and how it was selected.

    Attributes:
        on: what it was selected on, in words; "nothing" where there was one setting.
        by: the measure, in percent.
        n_images: number of images that were held out, of all seeds.
        candidates: of each setting, mean and standard deviation over seeds (None where a seed diverged), how far its mean is
            behind the best one, the standard error of that, and whether weights collapsed.
        notes: what a reader should know.
        tried: what was measured of each setting.
    """

    base_lr: float
    weight_decay: float
    on: str = "nothing"
    by: str | None = None
    n_images: int = 0
    candidates: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the notes and the results of single seeds."""
        values = {**asdict(self), "candidates": list(self.candidates)}
        del values["notes"], values["tried"]
        return values


def select(
    plans: Mapping[str, HeadPlan], passes: HeadPasses, recipe: Recipe, share: float, chosen_before: Mapping[str, Selected] = {}
) -> dict[str, Selected]:
    """The setting of each head: the best learning rate, with the strongest decay that is not distinguishable from the best one.

    All settings of all heads train side by side on the images that are not held out, and are judged once, by those that are.
    Each is tried with the first three seeds at most; where few images are held out, each has its own hold-out and pass, and
    more images are judged (Monte Carlo cross-validation). A setting differs from the best, on average over seeds, where it is
    behind by more than one standard error of the paired difference (Hastie et al., The Elements of Statistical Learning, 7.10);
    with several labels an image where it is behind at all. No learning rate is simpler than another, so the rate is that of the
    best setting, of equally good ones of the first. A setting with which a seed diverged is not chosen, and one with which
    weights collapsed only where all others did.

    Args:
        chosen_before: settings of heads that are kept, which stay.

    Raises:
        BeyondClsError: every setting diverged with some seed, or nothing can be measured on the images that are held out.
    """
    chosen = {name: Selected(*plan.settings[0]) for name, plan in plans.items() if len(plan.settings) == 1}
    chosen |= chosen_before
    grids = {name: plan for name, plan in plans.items() if name not in chosen}
    if not grids:
        return chosen
    by_setting, n_images = defaultdict[tuple[str, float, float], list[Outcome]](list), 0
    for members, learn, held_out in trials(plans, passes, share):
        n_images += len(held_out)
        for outcome in passes.train(members, recipe, learn, held_out):
            member = outcome.member
            by_setting[member.head, member.base_lr, member.weight_decay].append(outcome)
    for name, plan in grids.items():
        tried = _summarise_trials([by_setting[name, *setting] for setting in plan.settings], plan, passes, share, n_images)
        chosen[name] = best_setting(name, plan, tried, passes, share)
    return chosen


def candidates(plans: Mapping[str, HeadPlan]) -> list[Member]:
    """Members of the pass in which settings are compared."""
    grids = {name: plan for name, plan in plans.items() if len(plan.settings) > 1}
    return [Member(name, *setting, seed) for name, plan in grids.items() for setting in plan.settings for seed in _seeds(plan)]


def _seeds(plan: HeadPlan) -> tuple[int, ...]:
    return plan.seeds[:N_SEEDS]


def trials(
    plans: Mapping[str, HeadPlan], passes: HeadPasses, share: float
) -> list[tuple[list[Member], np.ndarray, np.ndarray]]:
    """Members of each pass in which settings are compared, rows of the training set to learn from, and rows held out."""
    members, n_splits = candidates(plans), _n_splits(passes, share)
    if passes.draws:
        seeds = sorted({member.seed for member in members})
        return [([m for m in members if m.seed == seed], *_split_rows(passes, share, seed)) for seed in seeds]
    if n_splits == 1:
        return [(members, *_split_rows(passes, share, 0))]
    place = {name: {seed: i for i, seed in enumerate(plan.seeds)} for name, plan in plans.items()}
    of_split = [[member for member in members if place[member.head][member.seed] == split] for split in range(n_splits)]
    return [(chosen, *_split_rows(passes, share, split)) for split, chosen in enumerate(of_split) if chosen]


def _n_splits(passes: HeadPasses, share: float) -> int:
    """Different hold-outs: one where it has enough images, or each pass is one of the encoder; else one for each seed.

    Where seeds draw their own images each has its own.
    """
    if passes.draws:
        return N_SEEDS
    return 1 if passes.loop is not None or round(share * len(passes.training.rows)) >= ENOUGH else N_SEEDS


def _split_rows(passes: HeadPasses, share: float, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a hold-out; its number is that of the seed where each draws its own images."""
    return hold_out(passes.training.store.labels, share, SEED + split, passes.learnt_by(split).rows)


def collapses(head: Head, entropy: float | None) -> bool:
    """Whether weights that are learned, of this entropy (nats), are on fewer than two patches on average."""
    return head.aggregator.trainable and entropy is not None and entropy < COLLAPSED


def _summarise_trials(
    outcomes: Sequence[Sequence[Outcome]], plan: HeadPlan, passes: HeadPasses, share: float, n_images: int
) -> list[Tried]:
    """What was measured of each setting of a grid, given the outcomes of its seeds."""
    measure = _measure_name(passes)
    percent = [tuple(outcome.result[measure] for outcome in of_seeds) for of_seeds in outcomes]
    if any(math.isnan(value) for values in percent for value in values):
        raise BeyondClsError(f"{measure} of the {n_images} images held out is not a number: none has a label; hold out more")
    collapsed = [any(collapses(o.head, o.result.get("entropy")) for o in of_seeds) for of_seeds in outcomes]
    tried = [Tried(values, None, is_bad) for values, is_bad in zip(percent, collapsed, strict=True)]
    if (best := _best_setting(tried, plan)) is None:
        return tried
    rows = [[o.correct.double().numpy() for o in of_seeds if o.correct is not None] for of_seeds in outcomes]
    if not rows[best]:  # several labels an image
        return tried
    same_images, n_seeds = _n_splits(passes, share) == 1, len(_seeds(plan))
    errors = [_standard_error(np.stack(rows[best]), np.stack(r), same_images) if len(r) == n_seeds else None for r in rows]
    return [replace(setting, error=error) for setting, error in zip(tried, errors, strict=True)]


def _standard_error(best: Float[np.ndarray, "S N"], other: Float[np.ndarray, "S N"], same_images: bool) -> float:
    """Standard error of the mean difference, percentage points: over images, and over seeds, where there are several.

    Where each seed was judged by other images, their spread has that of the images in it.
    """
    difference = 100 * (best - other)
    n_seeds, n_images = difference.shape
    over_seeds = float(difference.mean(1).std(ddof=1)) / math.sqrt(n_seeds) if n_seeds > 1 else 0.0
    if n_images < 2:
        return over_seeds
    if same_images:
        return math.hypot(float(difference.mean(0).std(ddof=1)) / math.sqrt(n_images), over_seeds)
    return max(math.sqrt(difference.var(1, ddof=1).mean() / (n_images * n_seeds)), over_seeds)


def _best_setting(tried: Sequence[Tried], plan: HeadPlan) -> int | None:
    """The number of the setting with the highest mean that may be chosen, the first of equal ones; None if all diverged."""
    finished = [i for i, setting in enumerate(tried) if len(setting.percent) == len(_seeds(plan))]
    eligible = [i for i in finished if not tried[i].collapsed] or finished
    return max(eligible, key=lambda i: np.mean(tried[i].percent), default=None)


def _measure_name(passes: HeadPasses) -> str:
    return "map" if passes.training.store.multilabel else "top1"


def best_setting(name: str, plan: HeadPlan, tried: Sequence[Tried], passes: HeadPasses, share: float) -> Selected:
    """The setting of a head's grid that `select` chooses.

    Args:
        tried: of each setting.
        share: of the training images, that was held out.

    Raises:
        BeyondClsError: every setting diverged with some seed.
    """
    best, notes, n_splits = _best_setting(tried, plan), [], min(_n_splits(passes, share), len(_seeds(plan)))
    n_images = sum(len(_split_rows(passes, share, i)[1]) for i in (_seeds(plan) if passes.draws else range(n_splits)))
    for (base_lr, weight_decay), setting in zip(plan.settings, tried, strict=True):
        if n_lost := (n_seeds := len(_seeds(plan))) - len(setting.percent):
            notes.append(f"base_lr {base_lr:g} with weight_decay {weight_decay:g} diverged ({n_lost} of {n_seeds} seeds)")
    if best is None:
        raise BeyondClsError(f"head {name!r} diverged with every setting: {'; '.join(notes)}; give lower base_lrs")
    if n_collapsed := sum(setting.collapsed for setting in tried):
        notes.append(f"weights collapsed with {n_collapsed} of {len(tried)} settings (entropy below ln 2)")
    compared = [_candidate(values, setting, tried[best], plan) for values, setting in zip(plan.settings, tried, strict=True)]
    alike = [
        c
        for c in compared
        if c["behind"] is not None and c["collapsed"] == tried[best].collapsed and c["behind"] <= (c["error"] or 0.0)
    ]
    best_lr = compared[best]["base_lr"]
    winner = max((c for c in alike if c["base_lr"] == best_lr), key=lambda c: c["weight_decay"])
    if len(alike) > 1:
        rates, decays = ([c[key] for c in alike] for key in ("base_lr", "weight_decay"))
        notes.append(
            f"{n_images:,} images do not tell {len(alike)} of {len(tried)} settings apart (one standard error): base_lr "
            f"{min(rates):g} to {max(rates):g}, weight_decay {min(decays):g} to {max(decays):g}; the best rate was taken, "
            "with the strongest decay"
        )
    for parameter, grid in (("base_lr", plan.base_lrs), ("weight_decay", plan.weight_decays)):
        if len(grid) > 1 and winner[parameter] in (min(grid), max(grid)) and winner[parameter] > 0:
            notes.append(f"{parameter} {winner[parameter]:g} is at the edge of the grid; a wider grid may give more")
    drawn = "at random" if passes.training.store.multilabel else "stratified"
    apart = ", others for each seed" if n_splits > 1 else ""
    how = f"{100 * share:g} % of the training images, {drawn}{apart}", _measure_name(passes), n_images
    return Selected(winner["base_lr"], winner["weight_decay"], *how, tuple(compared), tuple(notes), tuple(tried))


def _candidate(values: tuple[float, float], tried: Tried, best: Tried, plan: HeadPlan) -> dict[str, Any]:
    mean = std = behind = None
    if len(tried.percent) == len(_seeds(plan)):
        mean, std = float(np.mean(tried.percent)), float(np.std(tried.percent, ddof=1)) if len(tried.percent) > 1 else 0.0
        behind = float(np.mean(best.percent)) - mean
    candidate = {"base_lr": values[0], "weight_decay": values[1], "mean": mean, "std": std, "behind": behind}
    return candidate | {"error": tried.error, "collapsed": tried.collapsed}
