"""What a detector is built from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from store import BeyondClsError
from store.errors import unknown

N_LEVELS = (4, 5)  # of the pyramid; the fifth serves proposals alone


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
        masks: whether masks are predicted beside boxes.
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
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise BeyondClsError(unknown("option of a detector", name, known))
        return cls(**{**values, **({"anchors": tuple(values["anchors"])} if "anchors" in values else {})})
