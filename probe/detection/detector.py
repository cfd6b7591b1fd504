"""Mask R-CNN on patch tokens: no image is read, neither in training nor in evaluation."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign

from probe.detection.anchors import Anchors
from probe.detection.frame import frame_of
from probe.detection.options import DetectorOptions
from probe.detection.pyramid import Pyramid
from probe.head import FinalNorm
from store import BeyondClsError

LOSSES = ("loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask")
LEVELS = ["0", "1", "2", "3"]  # that regions are cut from; the coarsest serves proposals alone
BOX_CELLS, MASK_CELLS = 7, 14  # a region is resampled to so many cells each way
PROPOSED = {
    "fg_iou_thresh": 0.7,
    "bg_iou_thresh": 0.3,
    "batch_size_per_image": 256,
    "positive_fraction": 0.5,
    "nms_thresh": 0.7,
}
REGIONS = {"fg_iou_thresh": 0.5, "bg_iou_thresh": 0.5, "positive_fraction": 0.25, "bbox_reg_weights": None}
KEPT = {"score_thresh": 0.05, "nms_thresh": 0.5, "detections_per_img": 100}


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
            self.roi_heads.mask_head = MaskRCNNHeads(options.width, (options.width,) * options.mask_layers, 1)
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
