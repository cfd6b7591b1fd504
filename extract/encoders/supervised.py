"""Trained on labels: DeiT (Touvron et al. 2021, arXiv 2012.12877), AugReg (Steiner et al. 2022, arXiv 2106.10270)."""

from dataclasses import replace

from extract.encoders.pretrained import IMAGENET, LABELS, Pretrained
from extract.encoders.published import VIT_B, VIT_S, Vit

MINUS_ONE_TO_ONE = {**IMAGENET, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def _deit(model: str, file: str, vit: Vit) -> Pretrained:
    return Pretrained(
        model,
        f"https://dl.fbaipublicfiles.com/deit/{file}.pth",
        "Apache-2.0",
        transform=IMAGENET,
        signs=(),
        family=LABELS,
        published=(replace(vit, at="model/", dropped=("model/head.weight", "model/head.bias"), tells=False),),
    )


def _augreg(model: str, vit: Vit) -> Pretrained:
    """Published in JAX's format; timm converted it."""
    return Pretrained(
        model,
        f"timm/{model}.augreg_in1k",
        "Apache-2.0",
        transform=MINUS_ONE_TO_ONE,
        signs=(),
        family=LABELS,
        published=(replace(vit, dropped=("head.weight", "head.bias"), tells=False),),
    )


# Classifiers, which are dropped, were on [cls]; both families saw ImageNet-1K alone, without distillation. No name sets their
# files apart from one another, or from those of an MAE that was fine-tuned through [cls].
ENCODERS = {
    "deit-s16": _deit("deit_small_patch16_224", "deit_small_patch16_224-cd65a155", VIT_S),
    "deit-b16": _deit("deit_base_patch16_224", "deit_base_patch16_224-b5f2ef4d", VIT_B),
    "augreg-s16": _augreg("vit_small_patch16_224", VIT_S),
    "augreg-b16": _augreg("vit_base_patch16_224", VIT_B),
}
