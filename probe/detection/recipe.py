"""What a detector is built from, and how it is trained."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from store import BeyondClsError
from store.errors import unknown

N_LEVELS = (4, 5)  # of the pyramid; the fifth serves proposals alone
OPTIMISERS, SCHEDULES = ("adamw", "sgd"), ("step", "cosine")
MILESTONES = (3 / 4, 11 / 12)  # shares of all epochs after which the learning rate is a tenth: 9 and 11 of 12, 27 and 33 of 36
LOWEST = 1e-3  # share of the learning rate that the first step has
# "v1" is the protocol of the paper's first version, which follows iBOT's code: Mask R-CNN on COCO, AdamW, 36 epochs, 16 images
# a step. There images are flipped and resized at random; stored tokens are of the set's views. "small" is ours, for
# a few hundred images and a CPU. Of each: the recipe and the detector.
PRESETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "v1": ({"epochs": 36}, {}),
    "small": (
        {"epochs": 60, "batch_size": 8, "lr": 1e-3, "warmup_steps": 50, "schedule": "cosine", "clip": 1.0},
        {
            "width": 64,
            "anchors": (16, 32, 64, 128, 256),
            "box_features": 256,
            "mask_layers": 2,
            "proposals": 400,
            "samples": 128,
        },
    ),
}


@dataclass(frozen=True)
class DetectorOptions:
    """The parts of a detector and their sizes; the defaults are those of Mask R-CNN.

    Attributes:
        width: channels of the pyramid, of the proposals' head and of the masks' head.
        anchors: side of the anchors of each level, strides 4, 8, 16, 32 and 64 (if there are five), in pixels of the frame.
        box_features: width of the two layers that classify a region.
        mask_layers: convolutions before masks are predicted.
        proposals: regions an image that are kept in training; half of them in evaluation.
        samples: regions an image that the loss is computed from.
        masks: whether masks are predicted in addition to boxes.
        final_norm: whether the encoder's last LayerNorm is applied to the tokens first, where it has one.
    """

    width: int = 256
    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)
    box_features: int = 1024
    mask_layers: int = 4
    proposals: int = 2000
    samples: int = 512
    masks: bool = True
    final_norm: bool = True

    def __post_init__(self) -> None:
        for name in ("width", "box_features", "mask_layers", "proposals", "samples"):
            if (value := getattr(self, name)) < 1:
                raise BeyondClsError(f"{name} is {value}, expected 1 or more")
        if self.proposals < 2:
            raise BeyondClsError(f"proposals is {self.proposals}, expected 2 or more: evaluation keeps half of them")
        if len(self.anchors) not in N_LEVELS or min(self.anchors) < 1:
            raise BeyondClsError(
                f"anchors is {self.anchors}, expected the side in pixels for each of 4 or 5 levels, e.g. 32,64,128,256,512"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"anchors": list(self.anchors)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From plain values.

        Raises:
            BeyondClsError: an unknown name, or a value out of its range.
        """
        check_fields(cls, "option of a detector", values)
        return cls(**{**values, **({"anchors": tuple(values["anchors"])} if "anchors" in values else {})})


@dataclass(frozen=True)
class DetectionRecipe:
    """Settings of the training.

    Attributes:
        epochs: passes over the training images.
        batch_size: images of an optimiser step; the last one of an epoch may have fewer.
        optimiser: "adamw", or "sgd" with momentum 0.9.
        lr: peak learning rate.
        weight_decay: λ, of matrices and kernels; norms and biases have none.
        warmup_steps: in which the learning rate rises, linearly.
        schedule: "step": a tenth from 3/4 of the epochs on, a hundredth from 11/12 on; "cosine": to zero.
        clip: largest norm of the gradient; None for no limit.
    """

    epochs: int = 12
    batch_size: int = 16
    optimiser: str = "adamw"
    lr: float = 1e-4
    weight_decay: float = 0.05
    warmup_steps: int = 500
    schedule: str = "step"
    clip: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("warmup_steps", 0)):
            if (value := getattr(self, name)) < least:
                raise BeyondClsError(f"{name} is {value}, expected {least} or more")
        if not 0 < self.lr < math.inf:
            raise BeyondClsError(f"lr is {self.lr}, expected a positive number")
        if not 0 <= self.weight_decay < math.inf:
            raise BeyondClsError(f"weight_decay is {self.weight_decay}, expected 0 or more")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise BeyondClsError(f"clip is {self.clip}, expected the largest norm of a gradient, e.g. 1, or nothing")
        if self.optimiser not in OPTIMISERS:
            raise BeyondClsError(unknown("optimiser of detectors", self.optimiser, OPTIMISERS))
        if self.schedule not in SCHEDULES:
            raise BeyondClsError(unknown("schedule", self.schedule, SCHEDULES))

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step, counted from 0 over all epochs."""
        done = step / (self.epochs * steps_per_epoch)
        if self.schedule == "cosine":
            share = (1 + math.cos(math.pi * done)) / 2
        else:
            share = 0.1 ** sum(step >= round(milestone * self.epochs) * steps_per_epoch for milestone in MILESTONES)
        if step < self.warmup_steps:
            share *= LOWEST + (1 - LOWEST) * step / self.warmup_steps
        return self.lr * share


def make_detection_recipe(preset: str | None = None, **changed: Any) -> DetectionRecipe:
    """The recipe of a preset, or the defaults, with changes.

    Raises:
        BeyondClsError: an unknown preset or parameter, or a value out of its range.
    """
    check_fields(DetectionRecipe, "parameter of detection", changed)
    return DetectionRecipe(**{**preset_of_detection(preset)[0], **changed})


def check_fields(of: type[Any], kind: str, names: Iterable[str]) -> None:
    """Refuse names that are no field of a dataclass."""
    known = [field.name for field in fields(of)]
    if unasked := [name for name in names if name not in known]:
        raise BeyondClsError(unknown(kind, unasked[0], known))


def preset_of_detection(preset: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a preset says of the recipe and of the detector; nothing without a preset.

    Raises:
        BeyondClsError: an unknown preset.
    """
    if preset is None:
        return {}, {}
    if preset not in PRESETS:
        raise BeyondClsError(unknown("preset of detection", preset, PRESETS))
    return PRESETS[preset]
