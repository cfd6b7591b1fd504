"""ConvNeXt (Liu et al. 2022, arXiv 2201.03545): a convolutional network trained with labels. Its four stages are blocks."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, LABELS, Pretrained
from extract.encoders.weights import unwrapped

RENAMED = (
    (r"^downsample_layers\.0\.", "stem."),
    (r"^downsample_layers\.(\d)\.", r"stages.\1.downsample."),
    (r"^stages\.(\d)\.(\d+)\.dwconv\.", r"stages.\1.blocks.\2.conv_dw."),
    (r"^stages\.(\d)\.(\d+)\.pwconv(\d)\.", r"stages.\1.blocks.\2.mlp.fc\3."),
    (r"^stages\.(\d)\.(\d+)\.", r"stages.\1.blocks.\2."),
    (r"^norm\.", "head.norm."),  # behind pooling
)


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`; those of timm's hub have timm's names already."""
    state: Mapping[str, Tensor] = unwrapped(content)
    for old, new in RENAMED:
        state = {re.sub(old, new, name): value for name, value in state.items()}
    return dict(state)


def _convnext(size: str) -> Pretrained:
    return Pretrained(
        f"convnext_{size}", f"timm/convnext_{size}.fb_in1k", "MIT", convert=convert, transform=IMAGENET, family=LABELS
    )


ENCODERS = {"convnext-b": _convnext("base"), "convnext-t": _convnext("tiny")}
