"""Groups of test images that are left out in turn: how a measure that is no mean over images varies with the images.

With θ of all images and θ₋g without group g, the G values G θ - (G - 1) θ₋g vary over groups as θ does over sets of images: the
variance of their mean is that of θ.

Source: Shao and Wu 1989, A general theory for jackknife variance estimation (deleting a group at a time).
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int

from probe.draws import draws_of

N_GROUPS = 20
T = TypeVar("T")


def groups_of(n: int) -> Int[np.ndarray, "n"]:
    """The group of each of n images, by its position: groups of one size, drawn at random and the same on every machine."""
    return draws_of(np.arange(n), 0, "left-out").argsort().argsort() % max(1, min(N_GROUPS, n))


def without_each(n: int, measure: Callable[[Bool[np.ndarray, "n"]], T]) -> list[T]:
    """What `measure` makes of those of n images that are chosen: all without each group in turn; nothing of a single image."""
    groups = groups_of(n)
    return [measure(groups != group) for group in range(groups.max(initial=0) + 1)] if n > 1 else []
