"""Learning rates and weight decays are chosen on training images that are held out."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    """The setting that a head is trained with, and how it was selected.

    Attributes:
        on: what it was selected on, in words; "nothing" where there was one setting.
        by: the measure, in percent.
        n_images: number of images that were held out.
        candidates: the mean and standard deviation over seeds of each setting; None where a seed diverged.
        notes: what a reader should know.
        percent: for each candidate, the results of the seeds that did not diverge.
    """

    base_lr: float
    weight_decay: float
    on: str = "nothing"
    by: str | None = None
    n_images: int = 0
    candidates: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    percent: tuple[tuple[float, ...], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the notes and the results of single seeds."""
        values = {**asdict(self), "candidates": list(self.candidates)}
        del values["notes"], values["percent"]
        return values


def select(
    plans: Mapping[str, HeadPlan], passes: Passes, recipe: Recipe, share: float, chosen_before: Mapping[str, Selected] = {}
) -> dict[str, Selected]:
    """The best setting of each head, on average over its seeds; the first of equally good ones.

    All settings of all heads train in one pass over the images that are not held out, and are judged once, by those that are.
    A setting with which a seed diverged is not chosen.

    Args:
        chosen_before: settings of heads that are kept, which stay.

    Raises:
        BeyondClsError: every setting diverged with some seed, or nothing can be measured on the images that are held out.
    """
    chosen = {name: Selected(*plan.settings[0]) for name, plan in plans.items() if len(plan.settings) == 1} | dict(
        chosen_before
    )
    members, grids = candidates(plans), {name: plan for name, plan in plans.items() if name not in chosen}
    if not grids:
        return chosen
    learn, held_out = split_training(passes, share)
    measure, percent = (
        "map" if passes.training.store.multilabel else "top1",
        defaultdict[tuple[str, float, float], list[float]](list),
    )
    for outcome in passes.train(members, recipe, learn, held_out):
        member = outcome.member
        percent[member.head, member.base_lr, member.weight_decay].append(outcome.result[measure])
    if any(math.isnan(value) for values in percent.values() for value in values):
        raise BeyondClsError(
            f"{measure} of the {len(held_out)} images held out is not a number: none of them has a label; hold out more of them"
        )
    return chosen | {
        name: best_setting(name, plan, [percent[name, *setting] for setting in plan.settings], passes, share, len(held_out))
        for name, plan in grids.items()
    }


def candidates(plans: Mapping[str, HeadPlan]) -> list[Member]:
    """Members of the pass in which settings are compared."""
    grids = {name: plan for name, plan in plans.items() if len(plan.settings) > 1}
    return [Member(name, *setting, seed) for name, plan in grids.items() for setting in plan.settings for seed in plan.seeds]


def split_training(passes: Passes, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training set to learn from while settings are compared, and rows that are held out."""
    return hold_out(passes.training.store.labels, share, SEED, passes.training.rows)


def best_setting(
    name: str, plan: HeadPlan, percent: Sequence[Sequence[float]], passes: Passes, share: float, n_images: int
) -> Selected:
    """The best setting of a head's grid.

    Args:
        percent: for each setting, the results of the seeds that did not diverge.
        share: of the training images, that was held out: `n_images`.

    Raises:
        BeyondClsError: every setting diverged with some seed.
    """
    measure, drawn = ("map", "at random") if passes.training.store.multilabel else ("top1", "stratified")
    compared, finished, notes = [], [], []
    for (base_lr, weight_decay), values in zip(plan.settings, percent, strict=True):
        candidate: dict[str, Any] = {"base_lr": base_lr, "weight_decay": weight_decay, "mean": None, "std": None}
        if len(values) == len(plan.seeds):
            candidate |= {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}
            finished.append(candidate)
        else:
            lost = f"{len(plan.seeds) - len(values)} of {len(plan.seeds)} seeds"
            notes.append(f"base_lr {base_lr:g} with weight_decay {weight_decay:g} diverged ({lost})")
        compared.append(candidate)
    if not finished:
        raise BeyondClsError(f"head {name!r} diverged with every setting: {'; '.join(notes)}; give lower base_lrs")
    winner = max(finished, key=lambda candidate: candidate["mean"])
    for parameter, grid in (("base_lr", plan.base_lrs), ("weight_decay", plan.weight_decays)):
        if len(grid) > 1 and winner[parameter] in (min(grid), max(grid)) and winner[parameter] > 0:
            notes.append(f"{parameter} {winner[parameter]:g} is at the edge of the grid; a wider grid may give more")
    selected_on = f"{100 * share:g} % of the training images, {drawn}"
    reached = tuple(tuple(values) for values in percent)
    return Selected(
        winner["base_lr"], winner["weight_decay"], selected_on, measure, n_images, tuple(compared), tuple(notes), reached
    )
