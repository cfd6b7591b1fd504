"""How heads are trained, and the protocols that have names."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from store import BeyondClsError
from store.errors import unknown


@dataclass(frozen=True)
class Recipe:
    """The settings that all members of a pass share, and the learning rate and weight decay if no grid of them is given.

    Attributes:
        epochs: passes over the training images.
        batch_size: images of an optimiser step.
        rows_at_once: images that are computed at once; the gradients of a step are summed up. Batch normalisation sees this
            many. The whole batch by default.
        optimiser: a name in OPTIMISERS.
        base_lr: peak learning rate of a batch of 256, scaled linearly with the batch size.
        momentum: of SGD and LARS; the first beta of AdamW.
        weight_decay: λ.
        warmup_epochs: of linear warm-up, before half a cosine to zero.
        order: "shared": members of all seeds see the images in one order and in the same crops, so that one pass serves all;
            "own": each seed has its own order and its own pass. The seed sets the initial parameters in either case;
            with a shared order the spread over seeds shows nothing else.
        drop_last: whether the images after the last whole batch of an epoch are left out of that epoch (different ones each
            time), or make a smaller step. Fewer images than a batch are one step in either case.
    """

    epochs: int = 90
    batch_size: int = 1024
    rows_at_once: int | None = None
    optimiser: str = "sgd"
    base_lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    warmup_epochs: int = 10
    order: str = "shared"
    drop_last: bool = False

    def __post_init__(self) -> None:
        from probe.optim import OPTIMISERS  # and torch, without which the report names presets

        for name, value, least in (("epochs", self.epochs, 1), ("batch_size", self.batch_size, 2)):
            if value < least:
                raise BeyondClsError(f"{name} is {value}, expected {least} or more")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise BeyondClsError(
                f"epochs is {self.epochs}, and the learning rate rises during {self.warmup_epochs} of them (warmup_epochs), "
                f"expected 0 to {self.epochs - 1}; set warmup_epochs, too, or give more epochs"
            )
        if self.rows_at_once is not None and (self.rows_at_once < 2 or self.batch_size % self.rows_at_once):
            raise BeyondClsError(
                f"rows_at_once is {self.rows_at_once}, expected a divisor of batch_size ({self.batch_size}) from 2 on"
            )
        if self.optimiser not in OPTIMISERS:
            raise BeyondClsError(unknown("optimiser", self.optimiser, OPTIMISERS))
        if not 0 < self.base_lr < math.inf:
            raise BeyondClsError(f"base_lr is {self.base_lr}, expected a positive number")
        if not 0 <= self.weight_decay < math.inf:
            raise BeyondClsError(f"weight_decay is {self.weight_decay}, expected 0 or more")
        if not 0 <= self.momentum < 1:
            raise BeyondClsError(f"momentum is {self.momentum}, expected 0 or more and less than 1")
        if self.order not in ("shared", "own"):
            raise BeyondClsError(unknown("order", self.order, ("shared", "own")))

    @property
    def lr(self) -> float:
        """Peak learning rate."""
        return self.peak(self.base_lr)

    def peak(self, base_lr: float) -> float:
        """Peak learning rate of a member with this base learning rate."""
        return base_lr * self.batch_size / 256

    @property
    def at_once(self) -> int:
        """Images that are computed at once."""
        return self.rows_at_once or self.batch_size

    def per_process(self, world_size: int) -> tuple[int, int]:
        """Images of a step, and images at once, of each of several processes.

        Raises:
            BeyondClsError: the number of processes does not divide them.
        """
        if self.at_once % world_size:
            batch = f"batch_size {self.batch_size} (at once {self.at_once})"
            raise BeyondClsError(f"{batch} cannot be shared by {world_size} processes; choose multiples of {world_size}")
        return self.batch_size // world_size, self.at_once // world_size


# What the official code adds to all protocols of the paper. It drops the last batch of an epoch if that is not whole (and so
# would train on nothing with fewer images than a batch); its learning rate is scaled by the configured batch size, however many
# images there are. On several GPUs all seeds see the images in one order (its DistributedSampler gets no seed), but in
# different crops; on one GPU each seed has its own order.
_OFFICIAL: dict[str, Any] = {"order": "shared", "drop_last": True}
# Protocols of the paper (App. B of its second version), of a public benchmark, and one of ours.
PRESETS: dict[str, dict[str, Any]] = {
    # ImageNet-1k, NUS-WIDE, COCO, Food-101. Batch normalisation saw 2,048 images: four GPUs, two passes a step.
    "mae-lars": {"optimiser": "lars", "batch_size": 16384, "rows_at_once": 2048, **_OFFICIAL},
    # The same for ViT-L and ViT-H.
    "mae-lars-large": {"optimiser": "lars", "batch_size": 16384, "rows_at_once": 2048, "epochs": 50, **_OFFICIAL},
    # ImageNet-1k in the benchmark of efficient probing (Psomas et al. 2025, arXiv 2506.10178). Batch normalisation most often
    # saw the 256 images of a GPU. One seed; published is the epoch that is best on the test images.
    "ep-lars": {"optimiser": "lars", "batch_size": 4096, "rows_at_once": 256, **_OFFICIAL},
    # CUB, Cars, Pets, ImageNet-1 %. SGD of the official code has no momentum.
    "small-sgd": {"optimiser": "sgd", "batch_size": 1024, "momentum": 0.0, **_OFFICIAL},
    # Not from the paper: forgiving where members differ much in scale.
    "adamw": {"optimiser": "adamw", "batch_size": 1024, "base_lr": 1e-3, "weight_decay": 0.01},
}
# How the classifier starts in the protocols of others (`probe.head.Head`); "normal" in ours.
PRESET_INITS = {"mae-lars": "uniform", "mae-lars-large": "uniform", "ep-lars": "uniform", "small-sgd": "uniform"}
# What a grid may replace without making it another protocol.
CHOSEN = ("base_lr", "weight_decay")


def make_recipe(preset: str | None = None, **changed: Any) -> Recipe:
    """A named protocol, or the defaults, with changes.

    Raises:
        BeyondClsError: unknown preset or parameter, or a value out of its range.
    """
    if preset is not None and preset not in PRESETS:
        raise BeyondClsError(unknown("preset", preset, PRESETS))
    known = [field.name for field in fields(Recipe)]
    if strange := [name for name in changed if name not in known]:
        raise BeyondClsError(unknown("parameter of the recipe", strange[0], known))
    return Recipe(**{**PRESETS.get(preset or "", {}), **changed})


def settings_of(preset: str) -> dict[str, Any]:
    """All settings of a preset's recipe, but for `CHOSEN`."""
    defaults = {field.name: field.default for field in fields(Recipe) if field.name not in CHOSEN}
    return {name: PRESETS[preset].get(name, default) for name, default in defaults.items()}


def preset_of(recipe: Mapping[str, Any]) -> str:
    """The preset with all settings of a recorded recipe, but for `CHOSEN`; empty if there is none."""
    stated = {field.name: recipe.get(field.name, field.default) for field in fields(Recipe)}
    return next((name for name in PRESETS if settings_of(name).items() <= stated.items()), "")
