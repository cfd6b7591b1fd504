"""How an epoch is cut into optimiser steps, and steps into what is computed at once."""

from dataclasses import dataclass

from probe.ranks import world_size
from probe.recipe import Recipe
from store import BeyondClsError


@dataclass(frozen=True)
class Piece:
    """Images of one process that are computed at once, of a step.

    Attributes:
        step: that it belongs to, of `n_steps` in an epoch.
        rows: images.
        rows_of_step: that are computed in the step by all processes.
        skip: batch normalisation has no variance of a single image; a rest of one is seen in other epochs.
        ends_step: parameters are updated behind it.
    """

    step: int
    n_steps: int
    rows: int
    rows_of_step: int
    skip: bool
    ends_step: bool


def pieces(n_rows: int, recipe: Recipe) -> list[Piece]:
    """The pieces of an epoch over the `n_rows` images of one process; all processes have equally many.

    Raises: BeyondClsError: a batch cannot be shared by the processes, or there is nothing to train on.
    """
    world = world_size()
    if n_rows * world < 2:
        raise BeyondClsError(f"images to train on: {n_rows}, expected 2 or more")
    batch, at_once = recipe.of_each(world)
    n_steps = -(-n_rows // batch)
    found = []
    for step in range(n_steps):
        rows = min(batch, n_rows - step * batch)
        sizes = [min(at_once, rows - begin) for begin in range(0, rows, at_once)]
        computed = sum(size for size in sizes if size * world > 1) * world
        for number, size in enumerate(sizes, 1):
            found.append(Piece(step, n_steps, size, computed, size * world == 1, number == len(sizes) and computed > 0))
    return found
