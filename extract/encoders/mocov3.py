"""MoCo v3 (Chen et al. 2021, arXiv 2104.02057): contrastive learning with a momentum encoder."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, Pretrained
from extract.encoders.weights import unwrapped, without


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold three networks; the encoder is `base_encoder`, whose projection head is an MLP.

    Its fixed sin-cos positions are in the file as well.
    """
    return without(unwrapped(content, prefixes=("module.", "base_encoder.")), "head.")


def _mocov3(model: str, size: str, **arguments: Any) -> Pretrained:
    # As the paper's code sees every encoder. MoCo v3's own linear evaluation resizes bilinearly (torchvision's default) instead
    # of bicubically, to the same 256 pixels: --interpolation bilinear.
    weights = f"https://dl.fbaipublicfiles.com/moco-v3/vit-{size}-300ep/vit-{size}-300ep.pth.tar"
    return Pretrained(model, weights, "CC-BY-NC-4.0", arguments, convert=convert, transform=IMAGENET)


ENCODERS = {
    "mocov3-s16": _mocov3("vit_small_patch16_224", "s", num_heads=12),  # twice those of other ViT-S
    "mocov3-b16": _mocov3("vit_base_patch16_224", "b"),
}
