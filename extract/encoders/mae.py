"""Masked autoencoders (He et al. 2022, arXiv 2111.06377): ViTs that reconstruct the pixels of masked patches."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, MASKED, Pretrained
from extract.encoders.weights import unwrapped, without

DECODER = ("mask_token", "decoder_")


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`, with the decoder if they were written by the training script."""
    return without(unwrapped(content), *DECODER)


def _mae(model: str, weights: str) -> Pretrained:
    return Pretrained(
        model, weights, "CC-BY-NC-4.0", convert=convert, transform=IMAGENET, labels=False, signs=("decoder_",), family=MASKED
    )


OFFICIAL = "https://dl.fbaipublicfiles.com/mae/pretrain"
ENCODERS = {
    # Its authors published no ViT-S.
    "mae-s16": _mae("vit_small_patch16_224", "see https://github.com/facebookresearch/mae/blob/main/PRETRAIN.md (train one)"),
    "mae-b16": _mae("vit_base_patch16_224", f"{OFFICIAL}/mae_pretrain_vit_base.pth"),
    "mae-l16": _mae("vit_large_patch16_224", f"{OFFICIAL}/mae_pretrain_vit_large.pth"),
    "mae-h14": _mae("vit_huge_patch14_224", f"{OFFICIAL}/mae_pretrain_vit_huge.pth"),
}
