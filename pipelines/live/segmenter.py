"""A head for patches on its live encoder: from images to logits of pixels."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int16
from torch import Tensor, nn

from extract.encoders import Encoder
from extract.layouts import arrays_by_name
from extract.transform import Crop
from pipelines.live.pictures import Picture, open_pictures
from probe.segmentation.label_maps import Upsampling, label_map_of
from probe.segmentation.patch_head import PatchHead
from store import BeyondClsError


class OnEncoders(nn.Module):
    """What reads live encoders, which are shared with the caller. Frozen, always in evaluation mode; tokens are float32."""

    def __init__(self, *encoders: Encoder):
        super().__init__()
        self.encoder, self.encoders = encoders[0], encoders

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode."""
        return super().train(False)

    def prepare(self, pictures: Picture | Sequence[Picture]) -> tuple[Tensor, ...]:
        """Pictures or their files as `forward` takes them: the evaluation crop, [B, 3, H, W], once for each encoder.

        Raises:
            BeyondClsError: there is no picture, or one cannot be read; names it.
        """
        return tuple(
            e.normalised(torch.stack([e.views.evaluation(image) for image in open_pictures(pictures, e.pixels)]))
            for e in self.encoders
        )

    def black(self) -> list[Float[Tensor, "1 3 _H _W"]]:
        """One black image for each encoder, by which mismatches are found before the first batch."""
        return [torch.zeros(1, *e.config["input_size"], device=e.device) for e in self.encoders]


class OnPatches(OnEncoders):
    """What reads the patch tokens of one block of a live encoder."""

    def __init__(self, encoder: Encoder, block: int):
        super().__init__(encoder)
        self.block = block

    @torch.no_grad()
    def tokens(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B T D"]:
        """Patch tokens of the block, before the final norm and before any rounding that a store applies."""
        encoded = self.encoder(images, (self.block,))
        return arrays_by_name(encoded, 0)[f"patch/block{self.block}/view0"].float()

    def cut(self, pictures: Picture | Sequence[Picture]) -> tuple[Tensor, list[tuple[Crop, tuple[int, int]]]]:
        """Views of pictures or their files, and of each what its view shows, and its height and width.

        Raises:
            BeyondClsError: there is no picture, or one cannot be read; names it.
        """
        images = open_pictures(pictures, self.encoder.pixels)
        views, crops = zip(*(self.encoder.views.cut(image, "", 0) for image in images), strict=True)
        shown = [(crop, (image.height, image.width)) for crop, image in zip(crops, images, strict=True)]
        return self.encoder.normalised(torch.stack(views)), shown


class Segmenter(OnPatches):
    """Images to logits of each patch, or of each pixel.

    Args:
        encoder: that the head was trained on; `beyondcls.online` compares them.
        head: as `load_patch_head` gives it.
        description: the content of its JSON file.

    Attributes:
        grid: rows and columns of patches.
        classes: names by label.
        interpolated: whether pixels get the highest of the logits that are interpolated between patches, as those of the linear
            head are measured; else the class of the patch that covers them.

    Raises:
        BeyondClsError: the encoder gives other patches than the head was trained on.
    """

    def __init__(self, encoder: Encoder, head: PatchHead, description: Mapping[str, Any]):
        super().__init__(encoder, int(description["block"]))
        self.head, self.grid = head, head.grid
        self.model = encoder.model  # so that `to` moves it
        self.classes = tuple(description["classes"])
        self.interpolated = description.get("protocol") != "logistic"
        self.train()
        self.to(encoder.device)
        tokens = self.tokens(*self.black())
        expected = (head.grid[0] * head.grid[1], head.dim)
        if tuple(tokens.shape[1:]) != expected:
            raise BeyondClsError(
                f"{encoder.name} gives patches {list(tokens.shape[1:])}, the head was trained on {list(expected)}; "
                "load the encoder with the input size of its features"
            )

    @torch.no_grad()
    def forward(
        self, images: Float[Tensor, "B 3 H W"], size: tuple[int, int] | None = None
    ) -> Float[Tensor, "B K rows columns"]:
        """Logits of the patches; with `size` those of the pixels of a frame of that height and width, which the images fill."""
        logits = self.head({"patch": self.tokens(images)})
        return logits if size is None else Upsampling.to_frame(self.grid, size).bilinear(logits)

    @torch.no_grad()
    def label_maps(self, pictures: Picture | Sequence[Picture]) -> list[Int16[np.ndarray, "_h _w"]]:
        """The class of each pixel of pictures or their files, in pixels of each; -1 where the encoder does not see it.

        As `beyondcls segment` measures and saves them.

        Raises:
            BeyondClsError: there is no picture, or one cannot be read; names it.
        """
        images, cutter = open_pictures(pictures, self.encoder.pixels), self.encoder.views
        cut = [list(cutter.cuts(image, "", cutter.covering(image.size))) for image in images]
        views = torch.stack([pixels for of_image in cut for pixels, _ in of_image])
        logits = self(self.encoder.normalised(views)).cpu().split([len(of_image) for of_image in cut])
        label_maps = []
        for of_image, one, image in zip(cut, logits, images, strict=True):
            size = image.height, image.width
            upsamplings = [Upsampling.to_original(self.grid, crop.box, crop.flip, size) for _, crop in of_image]
            label_maps.append(label_map_of(one, upsamplings, size, self.interpolated))
        return label_maps
