"""A few steps of a pass, taken from its start, as numbers that tell whether training it now would give what it gave before.

No single number sees every edit of the trainer, so there are several, each nearly free:

- what costs no step: how an epoch is cut into steps, the learning rate of every step, which images every epoch shows in which
  order and view; and of the steps that are taken, which rates and images were really theirs;
- `start` and `updates`: where heads start, and what the optimiser makes of parameters and gradients that are given, in float64,
  for a weight decay that moves a loss by less than rounding does;
- `losses`, `right`, `state`: of the first steps, of the last ones of the first epoch at the full learning rate (with the rest
  of the images that makes no whole batch), and of the first ones of the last epoch, each from a fresh head; and the parameters
  and running statistics behind them, which a loss in training does not see.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor

from probe.course import Course
from probe.head import FinalNorm
from probe.pooled import PooledImages
from probe.ranks import summed, world_size
from probe.recipe import Recipe
from probe.train import Family, take_step, train
from store import Loader

FIRST, LATER = 16, 4  # steps of the beginning, and of each of two places later on
N_STEPS = FIRST + 2 * LATER
WORTH = 4  # times as many steps a pass must have at least: otherwise a check saves next to nothing
UPDATES = 3


def is_worth_it(n_rows: int, recipe: Recipe) -> bool:
    """Whether a pass over so many images of one process is that much longer than its rehearsal."""
    return recipe.epochs * Course.of(n_rows, recipe, 0).n_steps > WORTH * N_STEPS


def rehearse(
    fresh: Callable[[], Family],
    learn: Loader | PooledImages,
    recipe: Recipe,
    order: int,
    final_norm: FinalNorm | None = None,
) -> dict[str, Any]:
    """Plain values: of the pass, and by member. One head at a time, so that others beside it change nothing.

    Args:
        fresh: makes the family of the head's members, as they start.
        learn: the pass's batches.
        order: its seed.
    """
    course, members = Course.of(learn.n_rows, recipe, order), fresh().names
    seen: dict[str, Any] = {
        "pieces": _digest([vars(piece) for piece in course.pieces]),
        "learning_rates": {
            "rates": _summary(torch.tensor([recipe.peak(s) for e in course.shares for s in e], dtype=torch.float64))
        },
        "images": _order(learn, course),
        "rates": [],
        "rows": [],
    }
    of_each: list[dict[str, Any]] = [
        {"start": start, "updates": updated, "losses": [], "right": [], "state": []}
        for start, updated in zip(_summaries(fresh()), _updates(fresh(), recipe), strict=True)
    ]
    for epoch, step, n in _places(course, recipe):
        family, watched, taken = fresh(), _Watched(learn), _Taken(n)
        train(
            [family],
            watched,
            None,
            recipe,
            order,
            final_norm=final_norm,
            start=epoch,
            first_piece=course.first_piece(step),
            after_step=taken,
        )
        seen["rates"].append(taken.rates)
        seen["rows"].append(watched.digest)
        losses, right = _of_steps(taken.sums, course, step)
        for member, summary in enumerate(_summaries(family)):
            of_each[member]["losses"].append(losses[member])
            of_each[member]["right"].append(right[member])
            of_each[member]["state"].append(summary)
    return seen | {"members": [[m.base_lr, m.weight_decay, m.seed, values] for m, values in zip(members, of_each, strict=True)]}


def _places(course: Course, recipe: Recipe) -> list[tuple[int, int, int]]:
    """Epoch, first step and number of steps of each place."""
    n, last = course.n_steps, recipe.epochs - 1
    at_the_peak, begin = min(recipe.warmup_epochs, last), max(0, n - LATER)
    return [(0, 0, min(FIRST, n)), (at_the_peak, begin, n - begin), (last, 0, min(LATER, n))]


def _of_steps(sums: list[Tensor], course: Course, first: int) -> tuple[list[list[float]], list[float]]:
    """Mean loss of each step, and percent of the images that were answered rightly, by member."""
    summed(*sums)
    steps = torch.stack(sums).cpu()  # [steps, 2, M], of the epoch so far
    steps = steps.diff(dim=0, prepend=torch.zeros_like(steps[:1]))
    rows = [sum(p.rows for p in course.pieces if p.step == first + i and not p.skip) * world_size() for i in range(len(sums))]
    losses = steps[:, 0] / torch.tensor(rows)[:, None]
    return losses.T.tolist(), (100 * steps[:, 1].sum(0) / sum(rows)).tolist()


def _updates(family: Family, recipe: Recipe) -> list[dict[str, Any]]:
    """What the optimiser makes of numbers that hang on nothing else, at the full learning rate."""
    stack = family.stack
    stack.parameters = {name: _wave(p, 0.5).requires_grad_() for name, p in stack.parameters.items()}
    family.begin(recipe)
    for number in range(UPDATES):
        for parameter in stack.parameters.values():
            parameter.grad = _wave(parameter, number + 1.5) / world_size()
        take_step(family, recipe.peak(1.0))
    return [{name: _summary(p[m]) for name, p in stack.parameters.items()} for m in range(len(stack))]


def _wave(like: Tensor, phase: float) -> Tensor:
    """Numbers from -1 to 1 in the shape of members' parameters, the same for each member; float64."""
    values = torch.cos(phase + torch.arange(like[0].numel(), dtype=torch.float64))
    return values.view(like[0].shape).expand(like.shape).clone().to(like.device)


def _summaries(family: Family) -> list[dict[str, Any]]:
    """Of each member's parameters and running statistics, and of what its aggregator keeps."""
    stack, of_members = family.stack, {*family.stack.parameters, "running.mean", "running.var"}
    return [
        {name: _summary(values[m] if name in of_members else values) for name, values in stack.state().items()}
        for m in range(len(stack))
    ]


def _summary(values: Tensor) -> list[float]:
    """Norm, and the product with numbers that are no two alike: another value or another place of one changes either."""
    flat = values.detach().double().flatten().cpu()
    return [flat.norm().item(), (flat @ torch.cos(torch.arange(len(flat), dtype=torch.float64))).item()]


class _Taken:
    """Notes steps, and ends the training behind so many."""

    def __init__(self, n: int):
        self.n, self.rates, self.sums = n, list[float](), list[Tensor]()

    def __call__(self, rate: float, sums: Sequence[Tensor]) -> bool:
        self.rates.append(rate)
        self.sums.append(sums[0].clone())
        return len(self.rates) < self.n


class _Watched:
    """Batches, and a digest of the rows that were handed out."""

    def __init__(self, batches: Loader | PooledImages):
        self._batches, self.n_rows, self._rows = batches, batches.n_rows, xxhash.xxh3_128()

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
        for batch in self._batches.epoch(seed, start):
            self._rows.update(batch["row"].cpu().numpy().tobytes())
            yield batch

    @property
    def digest(self) -> str:
        return self._rows.hexdigest()


def _order(learn: Loader | PooledImages, course: Course) -> str:
    """Digest of the rows, and their views, of all epochs."""
    digest = xxhash.xxh3_128()
    for seed in course.seeds:
        visited, views = learn.order.visited(seed), learn.views_of(seed)
        digest.update(visited.astype("int64").tobytes())
        if views is not None:
            digest.update(views.numpy()[visited].astype("int64").tobytes())
    return digest.hexdigest()


def _digest(plain: Any) -> str:
    return xxhash.xxh3_128_hexdigest(repr(plain).encode())
