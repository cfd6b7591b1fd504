"""Learning rates and weight decays are chosen on training images that are held out."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from probe.grid import HeadPlan, Member
from probe.passes import Passes
from probe.recipe import Recipe
from probe.subsets import hold_out
from store import BeyondClsError

SEED = 0  # of the images that are held out


@dataclass(frozen=True)
class Selected:
    """The setting that a head is trained with, and how it was found.

    Attributes:
        on: what it was selected on, in words; "nothing" where there was one setting.
        by: the measure, in percent.
        n_images: that were held out.
        candidates: of each setting, the mean and standard deviation over seeds; none where a seed diverged.
        notes: what a reader should know.
    """

    base_lr: float
    weight_decay: float
    on: str = "nothing"
    by: str | None = None
    n_images: int = 0
    candidates: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the notes."""
        values = {**asdict(self), "candidates": list(self.candidates)}
        del values["notes"]
        return values


def select(plans: Mapping[str, HeadPlan], passes: Passes, recipe: Recipe, share: float) -> dict[str, Selected]:
    """The best setting of each head, on average over its seeds; of equal ones the first.

    All settings of all heads train in one pass over the images that are not held out, and are judged once, by those that are.
    A setting with which some seed diverged is none to rely on, and is not chosen.

    Raises: BeyondClsError: there is no such setting, or nothing can be measured on the images that are held out.
    """
    grids = {name: plan for name, plan in plans.items() if len(plan.settings) > 1}
    chosen = {name: Selected(*plan.settings[0]) for name, plan in plans.items() if name not in grids}
    members = [Member(name, *setting, seed) for name, plan in grids.items() for setting in plan.settings for seed in plan.seeds]
    if not members:
        return chosen
    store, rows = passes.training.store, passes.training.rows
    learn, held = hold_out(store.labels, share, SEED, rows)
    by, how = ("map", "at random") if store.multilabel else ("top1", "stratified")
    percent: dict[tuple[str, float, float], list[float]] = defaultdict(list)
    for outcome in passes.train(members, recipe, learn, held):
        of = outcome.member
        percent[of.head, of.base_lr, of.weight_decay].append(outcome.result[by])
    if any(math.isnan(value) for values in percent.values() for value in values):
        raise BeyondClsError(f"{by} of the {len(held)} images held out is no number: no class has any; hold out more of them")
    on = f"{100 * share:g} % of the training images, {how}"
    return chosen | {name: _best(name, plan, percent, on, by, len(held)) for name, plan in grids.items()}


def _best(
    name: str, plan: HeadPlan, percent: Mapping[tuple[str, float, float], list[float]], on: str, by: str, n_images: int
) -> Selected:
    candidates, finished, notes = [], [], []
    for base_lr, weight_decay in plan.settings:
        values = percent.get((name, base_lr, weight_decay), [])
        candidate: dict[str, Any] = {"base_lr": base_lr, "weight_decay": weight_decay, "mean": None, "std": None}
        if len(values) == len(plan.seeds):
            candidate |= {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}
            finished.append(candidate)
        else:
            lost = f"{len(plan.seeds) - len(values)} of {len(plan.seeds)} seeds"
            notes.append(f"base_lr {base_lr:g} with weight_decay {weight_decay:g} diverged ({lost})")
        candidates.append(candidate)
    if not finished:
        raise BeyondClsError(f"head {name!r} diverged with every setting: {'; '.join(notes)}; give lower base_lrs")
    best = max(finished, key=lambda candidate: candidate["mean"])
    for what, grid in (("base_lr", plan.base_lrs), ("weight_decay", plan.weight_decays)):
        if len(grid) > 1 and best[what] in (min(grid), max(grid)) and best[what] > 0:
            notes.append(f"{what} {best[what]:g} is at the edge of the grid; a wider grid may give more")
    return Selected(best["base_lr"], best["weight_decay"], on, by, n_images, tuple(candidates), tuple(notes))
