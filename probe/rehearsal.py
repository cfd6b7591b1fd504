"""A few steps of a pass, as numbers that tell whether training it now would give the same result as before.

No single number shows every edit of the trainer, so there are several, each nearly free:

- what needs no step: how an epoch is cut into steps, the learning rate of every step, which images every epoch shows in which
  order and view; and of the steps that are taken, which rates and images they really had;
- `start` and `updates`: where heads start, and what the optimiser makes of fixed parameters and gradients, in float64, for a
  weight decay that moves a loss by less than rounding does;
- `losses`, `right`, `state`: of the first steps, of the last ones of the first epoch at the full learning rate (with the rest
  of the images that makes no whole batch), and of the first ones of the last epoch, each from a fresh head; and the parameters
  and running statistics after them, which a training loss does not show.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor

from probe.course import Course
from probe.head import FinalNorm
from probe.pooled import PooledImages
from probe.ranks import sum_over_ranks, world_size
from probe.recipe import Recipe
from probe.train import Family, take_step, train
from store import Loader

FIRST, LATER = 16, 4  # steps at the beginning, and at each of two later places
N_STEPS = FIRST + 2 * LATER
WORTH = 4  # a pass must have more than this many times the steps: otherwise a check saves next to nothing
UPDATES = 3


def is_worth_it(n_rows: int, recipe: Recipe) -> bool:
    """Whether a pass over so many images of one process is that much longer than its rehearsal."""
    return recipe.epochs * Course.from_recipe(n_rows, recipe, 0).n_steps > WORTH * N_STEPS


def rehearse(
    fresh: Callable[[], Family],
    learn: Loader | PooledImages,
    recipe: Recipe,
    order: int,
    final_norm: FinalNorm | None = None,
) -> dict[str, Any]:
    """The rehearsal of a pass and of each of its members, as plain values. One head at a time, so that no other affects it.

    Args:
        fresh: makes the family of the head's members, with their initial parameters.
        learn: the batches of the pass.
        order: seed of the images' order in the pass.
    """
    course, members = Course.from_recipe(learn.n_rows, recipe, order), fresh().names
    recorded: dict[str, Any] = {
        "pieces": _digest([vars(piece) for piece in course.pieces]),
        "learning_rates": {
            "rates": _summary(torch.tensor([recipe.peak(s) for e in course.shares for s in e], dtype=torch.float64))
        },
        "images": _order_digest(learn, course),
        "rates": [],
        "rows": [],
    }
    per_member: list[dict[str, Any]] = [
        {"start": start, "updates": updated, "losses": [], "right": [], "state": []}
        for start, updated in zip(_summaries(fresh()), _updates(fresh(), recipe), strict=True)
    ]
    for epoch, step, n in _places(course, recipe):
        family, watched, recorder = fresh(), _DigestedBatches(learn), _StepRecorder(n)
        train(
            [family],
            watched,
            None,
            recipe,
            order,
            final_norm=final_norm,
            start=epoch,
            first_piece=course.first_piece(step),
            after_step=recorder,
        )
        recorded["rates"].append(recorder.rates)
        recorded["rows"].append(watched.digest)
        losses, right = _losses_and_right(recorder.sums, course, step)
        for member, summary in enumerate(_summaries(family)):
            per_member[member]["losses"].append(losses[member])
            per_member[member]["right"].append(right[member])
            per_member[member]["state"].append(summary)
    return recorded | {
        "members": [[m.base_lr, m.weight_decay, m.seed, values] for m, values in zip(members, per_member, strict=True)]
    }


def _places(course: Course, recipe: Recipe) -> list[tuple[int, int, int]]:
    """Epoch, first step and number of steps of each place."""
    n, last_epoch = course.n_steps, recipe.epochs - 1
    at_the_peak, begin = min(recipe.warmup_epochs, last_epoch), max(0, n - LATER)
    return [(0, 0, min(FIRST, n)), (at_the_peak, begin, n - begin), (last_epoch, 0, min(LATER, n))]


def _losses_and_right(sums: list[Tensor], course: Course, first_step: int) -> tuple[list[list[float]], list[float]]:
    """Mean loss of each step, and percentage of the images that were classified correctly, by member."""
    sum_over_ranks(*sums)
    steps = torch.stack(sums).cpu()  # [steps, 2, M], of the epoch so far
    steps = steps.diff(dim=0, prepend=torch.zeros_like(steps[:1]))
    rows = [
        sum(p.rows for p in course.pieces if p.step == first_step + i and not p.skip) * world_size() for i in range(len(sums))
    ]
    losses = steps[:, 0] / torch.tensor(rows)[:, None]
    return losses.T.tolist(), (100 * steps[:, 1].sum(0) / sum(rows)).tolist()


def _updates(family: Family, recipe: Recipe) -> list[dict[str, Any]]:
    """The parameters after optimiser steps on fixed numbers, at the full learning rate."""
    stack = family.stack
    stack.parameters = {name: _wave(p, 0.5).requires_grad_() for name, p in stack.parameters.items()}
    family.begin(recipe)
    for number in range(UPDATES):
        for parameter in stack.parameters.values():
            parameter.grad = _wave(parameter, number + 1.5) / world_size()
        take_step(family, recipe.peak(1.0))
    return [{name: _summary(p[m]) for name, p in stack.parameters.items()} for m in range(len(stack))]


def _wave(template: Tensor, phase: float) -> Tensor:
    """Numbers from -1 to 1 in the shape of members' parameters, the same for each member; float64."""
    values = torch.cos(phase + torch.arange(template[0].numel(), dtype=torch.float64))
    return values.view(template[0].shape).expand(template.shape).clone().to(template.device)


def _summaries(family: Family) -> list[dict[str, Any]]:
    """Summaries of each member's parameters and running statistics, and of its aggregator's buffers."""
    stack, member_names = family.stack, {*family.stack.parameters, "running.mean", "running.var"}
    return [
        {name: _summary(values[m] if name in member_names else values) for name, values in stack.state().items()}
        for m in range(len(stack))
    ]


def _summary(values: Tensor) -> list[float]:
    """The norm, and the product with numbers that all differ: a changed value or a changed place changes one of the two."""
    flat = values.detach().double().flatten().cpu()
    return [flat.norm().item(), (flat @ torch.cos(torch.arange(len(flat), dtype=torch.float64))).item()]


class _StepRecorder:
    """Records learning rates and sums of the first `n` steps, then ends the training."""

    def __init__(self, n: int):
        self.n, self.rates, self.sums = n, list[float](), list[Tensor]()

    def __call__(self, rate: float, sums: Sequence[Tensor]) -> bool:
        self.rates.append(rate)
        self.sums.append(sums[0].clone())
        return len(self.rates) < self.n


class _DigestedBatches:
    """The batches of a loader, and a digest of the rows that they held."""

    def __init__(self, batches: Loader | PooledImages):
        self._batches, self.n_rows, self._rows = batches, batches.n_rows, xxhash.xxh3_128()

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
        for batch in self._batches.epoch(seed, start):
            self._rows.update(batch["row"].cpu().numpy().tobytes())
            yield batch

    @property
    def digest(self) -> str:
        return self._rows.hexdigest()


def _order_digest(learn: Loader | PooledImages, course: Course) -> str:
    """Digest of the rows, and of their views, of all epochs."""
    digest = xxhash.xxh3_128()
    for seed in course.seeds:
        visited, views = learn.order.visited(seed), learn.views_of(seed)
        digest.update(visited.astype("int64").tobytes())
        if views is not None:
            digest.update(views.numpy()[visited].astype("int64").tobytes())
    return digest.hexdigest()


def _digest(plain: Any) -> str:
    return xxhash.xxh3_128_hexdigest(repr(plain).encode())
