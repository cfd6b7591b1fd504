"""What is fixed before the first step of a pass: how epochs are cut into steps, their seeds, and learning rates."""

from dataclasses import dataclass

import numpy as np

from probe.optim import learning_rate
from probe.ranks import world_size
from probe.recipe import Recipe
from store import BeyondClsError


@dataclass(frozen=True)
class Piece:
    """The part of a step's images that one process computes at once.

    Attributes:
        step: the step that it belongs to, of `n_steps` in an epoch; `n_steps` itself for a rest that is dropped.
        rows: number of images.
        rows_of_step: number of images that all processes compute in the step.
        skip: not computed: a rest that the recipe drops, or a single image, which has no variance for batch normalisation.
            Such images are seen in other epochs.
        ends_step: parameters are updated after it.
    """

    step: int
    n_steps: int
    rows: int
    rows_of_step: int
    skip: bool
    ends_step: bool


def pieces(n_rows: int, recipe: Recipe) -> list[Piece]:
    """The pieces of an epoch over the `n_rows` images of one process; all processes have the same number of images.

    Raises:
        BeyondClsError: a batch cannot be shared by the processes, or there is nothing to train on.
    """
    world = world_size()
    if n_rows * world < 2:
        raise BeyondClsError(f"images to train on: {n_rows}, expected 2 or more")
    batch, at_once = recipe.per_process(world)
    n_batches = -(-n_rows // batch)
    n_steps = max(1, n_rows // batch) if recipe.drop_last else n_batches
    epoch_pieces = []
    for step in range(n_batches):
        rows = min(batch, n_rows - step * batch)
        sizes = [min(at_once, rows - begin) for begin in range(0, rows, at_once)]
        skips = [step == n_steps or size * world == 1 for size in sizes]
        computed = sum(size for size, skip in zip(sizes, skips, strict=True) if not skip) * world
        for number, (size, skip) in enumerate(zip(sizes, skips, strict=True), 1):
            epoch_pieces.append(Piece(step, n_steps, size, computed, skip, number == len(sizes) and computed > 0))
    return epoch_pieces


@dataclass(frozen=True)
class Course:
    """The schedule of one pass.

    Attributes:
        pieces: of every epoch.
        seeds: one an epoch, for the order of its images, the views that are shown, and what aggregators draw.
        shares: the learning rate of each step of each epoch, as a share of its peak.
    """

    pieces: list[Piece]
    seeds: list[int]
    shares: list[list[float]]

    @classmethod
    def from_recipe(cls, n_rows: int, recipe: Recipe, order: int) -> "Course":
        """The course over the `n_rows` images of one process; `order` is the seed of their order.

        Raises:
            BeyondClsError: batches that cannot be shared by the processes, or fewer than two images.
        """
        epoch_pieces = pieces(n_rows, recipe)
        n = epoch_pieces[-1].n_steps
        return cls(
            epoch_pieces,
            [epoch_seed(order, epoch) for epoch in range(recipe.epochs)],
            [
                [learning_rate(epoch + step / n, 1.0, recipe.epochs, recipe.warmup_epochs) for step in range(n)]
                for epoch in range(recipe.epochs)
            ],
        )


def epoch_seed(order: int, epoch: int) -> int:
    """Seed of an epoch's order; no two (order, epoch) share one."""
    return int(np.random.SeedSequence([order, epoch]).generate_state(1, np.uint64)[0])
