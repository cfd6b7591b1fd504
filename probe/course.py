"""What is fixed before the first step of a pass: how epochs are cut, their seeds, and the learning rate of each step."""

from dataclasses import dataclass

import numpy as np

from probe.optim import learning_rate
from probe.pieces import Piece, pieces
from probe.recipe import Recipe


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
