"""Masked autoencoders (He et al. 2022, arXiv 2111.06377): ViTs that reconstruct the pixels of masked patches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, MASKED, Pretrained
from extract.encoders.published import VIT_B, VIT_H, VIT_L, VIT_S, Vit
from extract.encoders.weights import drop_prefixes, unwrapped

DECODER = ("mask_token", "decoder_")


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`, with the decoder if they were written by the training script."""
    return drop_prefixes(unwrapped(content), *DECODER)


def _mae(model: str, weights: str, vit: Vit) -> Pretrained:
    encoder_only = replace(vit, at="model/", tells=False)
    decoder = ("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_blocks.0.norm1.weight", "decoder_pred.bias")
    return Pretrained(
        model,
        weights,
        "CC-BY-NC-4.0",
        convert=convert,
        transform=IMAGENET,
        labels=False,
        signs=("decoder_",),
        family=MASKED,
        published=(encoder_only, replace(encoder_only, dropped=[f"model/{name}" for name in decoder], tells=True)),
    )


RECIPE = "https://github.com/facebookresearch/mae/blob/main/PRETRAIN.md"
OFFICIAL = "https://dl.fbaipublicfiles.com/mae/pretrain"
ENCODERS = {
    # Its authors published no ViT-S.
    "mae-s16": _mae("vit_small_patch16_224", f"see {RECIPE} (train one)", VIT_S),
    "mae-b16": _mae("vit_base_patch16_224", f"{OFFICIAL}/mae_pretrain_vit_base.pth", VIT_B),
    "mae-l16": _mae("vit_large_patch16_224", f"{OFFICIAL}/mae_pretrain_vit_large.pth", VIT_L),
    "mae-h14": _mae("vit_huge_patch14_224", f"{OFFICIAL}/mae_pretrain_vit_huge.pth", VIT_H),
}
