"""Masked autoencoders (He et al. 2022, arXiv 2111.06377): ViTs that reconstruct the pixels of masked patches."""

from functools import partial

from extract.encoders.pretrained import MASKED, Pretrained
from extract.encoders.weights import unwrapped


def _mae(model: str, weights: str) -> Pretrained:
    """The official files hold `model`, with the decoder if they were written by the training script."""
    convert = partial(unwrapped, dropped=("mask_token", "decoder_"))
    return Pretrained(model, weights, "CC-BY-NC-4.0", convert=convert, signs=("decoder_",), family=MASKED)


RECIPE = "https://github.com/facebookresearch/mae/blob/main/PRETRAIN.md"
OFFICIAL = "https://dl.fbaipublicfiles.com/mae/pretrain"
ENCODERS = {
    # Its authors published no ViT-S.
    "mae-s16": _mae("vit_small_patch16_224", f"see {RECIPE} (train one)"),
    "mae-b16": _mae("vit_base_patch16_224", f"{OFFICIAL}/mae_pretrain_vit_base.pth"),
    "mae-l16": _mae("vit_large_patch16_224", f"{OFFICIAL}/mae_pretrain_vit_large.pth"),
    "mae-h14": _mae("vit_huge_patch14_224", f"{OFFICIAL}/mae_pretrain_vit_huge.pth"),
}
