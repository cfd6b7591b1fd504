"""Heads, and the grids of settings that they are trained with."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from probe.aggregators import is_foreign, make_aggregator
from probe.aggregators.custom import check_made
from probe.closed import Closed
from probe.head import FinalNorm, Head
from probe.recipe import Recipe
from store import BeyondClsError
from store.user_code import explaining


@dataclass(frozen=True)
class HeadSpec:
    """The definition of a head, without its parameters. `options` are the aggregator's; the rest is as in `Head`."""

    aggregator: str = "abmilp"
    options: Mapping[str, Any] = field(default_factory=dict)
    normalisation: str = "batch"
    final_norm: bool = False
    init: str = "normal"

    def build(
        self, dim: int, n_patches: int | None, n_classes: int, final_norm: FinalNorm | None = None, seed: int = 0
    ) -> Head:
        """A head whose initial parameters follow from the seed.

        Raises:
            BeyondClsError: unknown aggregator, options, normalisation or start.
        """
        name, custom = self.aggregator, is_foreign(self.aggregator)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # heads are made on the CPU; a GPU's numbers stay as they are
            with explaining(name, f"{name} cannot be made") if custom else nullcontext():
                aggregator = make_aggregator(name, dim, n_patches, **self.options)
                if custom:
                    check_made(name, aggregator)
            return Head(aggregator, n_classes, self.normalisation, final_norm if self.final_norm else None, self.init)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "options": dict(self.options)}


@dataclass(frozen=True)
class HeadPlan:
    """A head and how to train it: each seed with the values that are best on held-out training images.

    Attributes:
        base_lrs, weight_decays: values to choose from; those of the recipe by default.
        closed: a protocol without gradient steps, in place of recipe, seeds and grid.
    """

    head: HeadSpec = field(default_factory=HeadSpec)
    recipe: Recipe = field(default_factory=Recipe)
    seeds: tuple[int, ...] = (0, 1, 2)
    base_lrs: tuple[float, ...] = ()
    weight_decays: tuple[float, ...] = ()
    closed: Closed | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise BeyondClsError("no seed was given; give at least one")
        for name, values in (("seeds", self.seeds), ("base_lrs", self.base_lrs), ("weight_decays", self.weight_decays)):
            if len(set(values)) < len(values):
                raise BeyondClsError(f"{name} are {list(values)}, expected every value once")
        for seed in self.seeds:
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise BeyondClsError(f"seeds hold {seed!r}, expected whole numbers from 0 on")
        for lr in self.base_lrs:
            if not _is_number(lr) or lr <= 0:
                raise BeyondClsError(f"base_lrs hold {lr!r}, expected positive numbers")
        for decay in self.weight_decays:
            if not _is_number(decay) or decay < 0:
                raise BeyondClsError(f"weight_decays hold {decay!r}, expected numbers from 0 on")

    @property
    def settings(self) -> list[tuple[float, float]]:
        """(base_lr, weight_decay) to choose from."""
        decays = self.weight_decays or (self.recipe.weight_decay,)
        return [(lr, decay) for lr in self.base_lrs or (self.recipe.base_lr,) for decay in decays]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, order=True)
class Member:
    """One head of a grid that trains."""

    head: str
    base_lr: float
    weight_decay: float
    seed: int

    def __str__(self) -> str:
        return f"{self.head} (base_lr {self.base_lr:g}, weight_decay {self.weight_decay:g}, seed {self.seed})"


@dataclass(frozen=True)
class Epoch:
    """An epoch of a member, as `on_epoch` of `probe` gets it.

    Attributes:
        member: its head, base_lr, weight_decay and seed.
        stage: "selection", where settings are compared on a part of the training images, or "training", on all of them.
        measures: epoch, from 1 on; lr, of its last step; loss, the mean over the images; and what else curves.csv has:
            train_top1, in percent, and in the stage "training" the measures of the test images.
        is_replayed: whether an earlier run has trained it, from whose checkpoint this one goes on.
    """

    member: Member
    stage: str
    measures: Mapping[str, float]
    is_replayed: bool = False
