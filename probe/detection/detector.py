"""Mask R-CNN on patch tokens (no image is read, neither in training nor in evaluation), and its files."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.convnext import LayerNorm2d
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign

from probe.detection.recipe import DetectorOptions
from probe.detection.targets import frame_of
from probe.head import FinalNorm
from probe.modules import Kind, load_module, make_module, save_module
from store import BeyondClsError

RATIOS = (0.5, 1.0, 2.0)  # height by width
FINEST = 4  # stride of the first level, doubled from level to level
EPS = 1e-6
LOSSES = ("loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask")
LEVELS = ["0", "1", "2", "3"]  # that regions are cut from; the coarsest serves proposals alone
BOX_CELLS, MASK_CELLS = 7, 14  # a region is resampled to this many cells each way
PROPOSED = {
    "fg_iou_thresh": 0.7,
    "bg_iou_thresh": 0.3,
    "batch_size_per_image": 256,
    "positive_fraction": 0.5,
    "nms_thresh": 0.7,
}
REGIONS = {"fg_iou_thresh": 0.5, "bg_iou_thresh": 0.5, "positive_fraction": 0.25, "bbox_reg_weights": None}
KEPT = {"score_thresh": 0.05, "nms_thresh": 0.5, "detections_per_img": 100}
DETECTOR = Kind("detector", "beyondcls detect", 1, "detection")


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


class Pyramid(nn.Module):
    """Maps of stride 4, 8, 16 and 32 by transposed convolutions, identity and max pooling; each then 1x1 and 3x3 convolved.

    A fifth one, of stride 64, is every second element of the fourth.

    Args:
        dim: of the tokens.
        width: channels of each map.
        n_levels: 4 or 5.
    """

    def __init__(self, dim: int, width: int, n_levels: int = 4):
        super().__init__()
        half, quarter = max(1, dim // 2), max(1, dim // 4)
        to_stride_4 = [nn.ConvTranspose2d(dim, half, 2, 2), LayerNorm2d(half, eps=EPS), nn.GELU()]
        scales: tuple[tuple[nn.Module, int], ...] = (
            (nn.Sequential(*to_stride_4, nn.ConvTranspose2d(half, quarter, 2, 2)), quarter),
            (nn.ConvTranspose2d(dim, half, 2, 2), half),
            (nn.Identity(), dim),
            (nn.MaxPool2d(2, 2, ceil_mode=True), dim),  # an odd grid loses nothing
        )
        self.levels = nn.ModuleList(
            nn.Sequential(
                scale,
                nn.Conv2d(channels, width, 1, bias=False),
                LayerNorm2d(width, eps=EPS),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                LayerNorm2d(width, eps=EPS),
            )
            for scale, channels in scales
        )
        self.n_levels = n_levels

    def forward(self, tokens: Float[Tensor, "B D rows columns"]) -> dict[str, Float[Tensor, "B C _h _w"]]:
        """Maps by level, "0" the finest."""
        maps = [level(tokens) for level in self.levels]
        if self.n_levels > len(maps):
            maps.append(F.max_pool2d(maps[-1], 1, 2))
        return {str(level): values for level, values in enumerate(maps)}


class Detector(nn.Module):
    """From patch tokens to boxes and masks in a frame with 16 pixels a patch, by torchvision's proposals and region heads.

    In training mode it gives the losses by name (`LOSSES`), otherwise for each image a dictionary: boxes [n, 4] (x0, y0, x1, y1
    in the frame), labels [n] from 1 (0 is the background), scores [n] in 0…1, descending, and masks [n, 1, 28, 28], the
    probability of the object at each place of its box.

    Args:
        dim: D of the tokens.
        grid: rows and columns of patches.
        n_classes: K, without the background.
        options: what it is built from.
        final_norm: the encoder's last LayerNorm, frozen.

    Raises:
        BeyondClsError: a grid of fewer than 2 x 2 patches.
    """

    def __init__(
        self, dim: int, grid: tuple[int, int], n_classes: int, options: DetectorOptions, final_norm: FinalNorm | None = None
    ):
        super().__init__()
        if min(grid) < 2:
            raise BeyondClsError(
                f"the grid has {grid[0]} x {grid[1]} patches, expected 2 x 2 at least; extract images of a larger --input-size"
            )
        self.dim, self.grid, self.n_classes, self.options, self.final_norm = dim, grid, n_classes, options, final_norm
        self.pyramid = Pyramid(dim, options.width, len(options.anchors))
        anchors, n = Anchors(options.anchors), {"training": options.proposals, "testing": options.proposals // 2}
        head = RPNHead(options.width, anchors.num_anchors_per_location()[0])
        self.rpn = RegionProposalNetwork(anchors, head, pre_nms_top_n=n, post_nms_top_n=n, **PROPOSED)
        self.roi_heads = RoIHeads(
            MultiScaleRoIAlign(LEVELS, BOX_CELLS, 2),
            TwoMLPHead(options.width * BOX_CELLS**2, options.box_features),
            FastRCNNPredictor(options.box_features, n_classes + 1),
            batch_size_per_image=options.samples,
            **REGIONS,
            **KEPT,
        )
        if options.masks:
            self.roi_heads.mask_roi_pool = MultiScaleRoIAlign(LEVELS, MASK_CELLS, 2)
            self.roi_heads.mask_head = MaskRCNNHeads(options.width, repeat(options.width, options.mask_layers), 1)
            self.roi_heads.mask_predictor = MaskRCNNPredictor(options.width, options.width, n_classes + 1)

    @property
    def frame(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return frame_of(self.grid)

    def forward(
        self, tokens: Float[Tensor, "B T D"], targets: Sequence[Mapping[str, Tensor]] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Losses in training mode, else detections.

        Args:
            tokens: patches row by row, before the final norm.
            targets: of each image, for training: boxes [n, 4] in the frame, labels [n] from 1, and for a detector with masks
                masks [n, H, W] uint8 in the frame. An image without objects has n = 0.

        Raises:
            BeyondClsError: tokens of another grid or width.
        """
        maps = self.maps(tokens)
        images = ImageList(torch.empty(len(tokens), 1, *self.frame, device="meta"), [self.frame] * len(tokens))
        listed = None if targets is None else [dict(target) for target in targets]
        proposals, proposal_losses = self.rpn(images, maps, listed)
        detections, losses = self.roi_heads(maps, proposals, images.image_sizes, listed)
        return {**losses, **proposal_losses} if self.training else detections

    def maps(self, tokens: Float[Tensor, "B T D"]) -> dict[str, Float[Tensor, "B C _h _w"]]:
        """The pyramid.

        Raises:
            BeyondClsError: tokens of another grid or width.
        """
        rows, columns = self.grid
        if tokens.shape[1:] != (rows * columns, self.dim):
            raise BeyondClsError(
                f"tokens are {list(tokens.shape)}, this detector expects [B, {rows * columns}, {self.dim}], {rows} x {columns} "
                "patches; give features of the encoder and the input size that it was trained on"
            )
        if self.final_norm is not None:
            tokens = self.final_norm({"patch": tokens})["patch"]
        return self.pyramid(tokens.transpose(1, 2).unflatten(2, self.grid))


def save_detector(path: Path, detector: Detector, about: dict[str, Any]) -> None:
    """Write `path`.safetensors and `path`.json. `about`: the encoder, the classes, how it was trained, its results."""
    sizes = {"dim": detector.dim, "grid": list(detector.grid), "n_classes": detector.n_classes}
    save_module(path, DETECTOR, detector, {"detector": detector.options.to_dict(), **sizes, **about})


def load_detector(path: str | Path) -> Detector:
    """A trained detector in evaluation mode, from patch tokens [B, T, D] to detections (`Detector`).

        detector = load_detector("detection/mae/trained/seed0")

    Args:
        path: of either file, or their common stem.

    Raises:
        BeyondClsError: a file is missing, damaged or of another format version, or the two do not fit each other.
    """
    return load_detector_with(path)[0]


def load_detector_with(path: str | Path) -> tuple[Detector, dict[str, Any]]:
    """`load_detector`, and the content of the JSON file.

    Raises:
        BeyondClsError: as `load_detector`.
    """

    def build(described: dict[str, Any], parameters: Path) -> Detector:
        dim, n_classes, eps = int(described["dim"]), int(described["n_classes"]), described["final_norm_eps"]
        rows, columns = (int(n) for n in described["grid"])
        options = DetectorOptions.from_dict(described["detector"])
        norm = lambda: FinalNorm.saved_with(parameters, dim, eps)  # noqa: E731
        return make_module(lambda: Detector(dim, (rows, columns), n_classes, options, norm()), parameters, dim, n_classes)

    return load_module(path, DETECTOR, build)
