"""Anchors at exact strides."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList

RATIOS = (0.5, 1.0, 2.0)  # height by width
FINEST = 4  # stride of the first level, doubled from level to level


class Anchors(AnchorGenerator):
    """torchvision's anchors, one side a level, at strides 4, 8, 16, …

    torchvision divides the image's side by the map's, which is another number where an odd grid was halved.
    """

    def __init__(self, sides: Sequence[int]):
        super().__init__(tuple((side,) for side in sides), (RATIOS,) * len(sides))

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        """Anchors of each image: x0, y0, x1, y1 in pixels of the frame, level after level."""
        first = feature_maps[0]
        self.set_cell_anchors(first.dtype, first.device)
        strides = [[torch.tensor(FINEST << level, device=first.device)] * 2 for level in range(len(feature_maps))]
        anchors = torch.cat(self.grid_anchors([list(values.shape[-2:]) for values in feature_maps], strides))
        return [anchors] * len(image_list.image_sizes)
