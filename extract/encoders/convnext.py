"""ConvNeXt (Liu et al. 2022, arXiv 2201.03545): a convolutional network trained with labels. Its four stages are blocks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, LABELS, Pretrained
from extract.encoders.published import Part, Published
from extract.encoders.weights import unwrapped

RENAMED = (
    (r"^downsample_layers\.0\.", "stem."),
    (r"^downsample_layers\.(\d)\.", r"stages.\1.downsample."),
    (r"^stages\.(\d)\.(\d+)\.dwconv\.", r"stages.\1.blocks.\2.conv_dw."),
    (r"^stages\.(\d)\.(\d+)\.pwconv(\d)\.", r"stages.\1.blocks.\2.mlp.fc\3."),
    (r"^stages\.(\d)\.(\d+)\.", r"stages.\1.blocks.\2."),
    (r"^norm\.", "head.norm."),  # after pooling
)


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`; those of timm's hub have timm's names already."""
    state: Mapping[str, Tensor] = unwrapped(content)
    for theirs, ours in RENAMED:
        state = {re.sub(theirs, ours, name): value for name, value in state.items()}
    return dict(state)


@dataclass(frozen=True)
class Stages(Published):
    """A file of a ConvNeXt; its tokens are feature maps.

    Attributes:
        widths, depths: of the four stages.
        first, down, block: prefixes of the names of the first layers, of those before a stage, and of a block.
        mix, wide, narrow, norm: names of a block's three layers, and of the norm after pooling.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    first: str = "stem."
    down: str = "stages.{}.downsample."
    block: str = "stages.{}.blocks.{}."
    mix: str = "conv_dw"
    wide: str = "mlp.fc1"
    narrow: str = "mlp.fc2"
    norm: str = "head.norm"
    heads: ClassVar[int] = 0
    pooled: ClassVar[bool] = True

    @property
    def output(self) -> tuple[int, int, int]:
        return len(self.depths), (self.side // 32) ** 2, self.widths[-1]

    def tensors(self) -> dict[str, Part]:
        parts = self._layer(f"{self.first}0", "conv", self.widths[0], 3, 4, 4)
        parts |= self._layer(f"{self.first}1", "norm", self.widths[0])
        for stage, (previous_width, width, depth) in enumerate(zip((0, *self.widths), self.widths, self.depths, strict=False)):
            if stage:
                parts |= self._layer(self.down.format(stage) + "0", "norm", previous_width)
                parts |= self._layer(self.down.format(stage) + "1", "conv", width, previous_width, 2, 2)
            for index in range(depth):
                name = self.block.format(stage, index)
                parts |= self._layer(name + self.mix, "conv", width, 1, 7, 7) | self._layer(f"{name}norm", "norm", width)
                parts |= self._layer(name + self.wide, "wide", 4 * width, width)
                parts |= self._layer(name + self.narrow, "narrow", width, 4 * width)
                parts[f"{name}gamma"] = Part("scale", (width,))
        return parts | self._layer(self.norm, "norm", self.widths[-1])

    def smaller(self) -> tuple["Stages", dict[str, Any]]:
        widths, depths = (8, 16, 24, 32), (1, 2, 1, 1)
        return replace(self, widths=widths, depths=depths), {"dims": widths, "depths": depths}

    @staticmethod
    def _layer(name: str, role: str, *shape: int) -> dict[str, Part]:
        return {f"{name}.weight": Part(f"{role}.weight", shape), f"{name}.bias": Part(f"{role}.bias", shape[:1])}


def _convnext(size: str, timm_file: Stages) -> Pretrained:
    official = replace(
        timm_file,
        at="model/",
        dropped=("model/head.weight", "model/head.bias"),
        first="downsample_layers.0.",
        down="downsample_layers.{}.",
        block="stages.{}.{}.",
        mix="dwconv",
        wide="pwconv1",
        narrow="pwconv2",
        norm="norm",
    )
    return Pretrained(
        f"convnext_{size}",
        f"timm/convnext_{size}.fb_in1k",
        "MIT",
        convert=convert,
        transform=IMAGENET,
        family=LABELS,
        published=(official, replace(timm_file, dropped=("head.fc.weight", "head.fc.bias"))),
    )


ENCODERS = {
    "convnext-b": _convnext("base", Stages((128, 256, 512, 1024), (3, 3, 27, 3))),
    "convnext-t": _convnext("tiny", Stages((96, 192, 384, 768), (3, 3, 9, 3))),
}
