"""Trained on labels: DeiT (Touvron et al. 2021, arXiv 2012.12877), AugReg (Steiner et al. 2022, arXiv 2106.10270)."""

from extract.encoders.pretrained import HALVES, LABELS, Pretrained


def _deit(model: str, file: str) -> Pretrained:
    return Pretrained(model, f"https://dl.fbaipublicfiles.com/deit/{file}.pth", "Apache-2.0", signs=(), family=LABELS)


def _augreg(model: str) -> Pretrained:
    """Published in JAX's format; timm converted it."""
    return Pretrained(model, f"timm/{model}.augreg_in1k", "Apache-2.0", transform=HALVES, signs=(), family=LABELS)


# Classifiers, which are dropped, were on [cls]; both families saw ImageNet-1K alone, without distillation. No name sets their
# files apart from one another, or from those of an MAE that was fine-tuned through [cls].
ENCODERS = {
    "deit-s16": _deit("deit_small_patch16_224", "deit_small_patch16_224-cd65a155"),
    "deit-b16": _deit("deit_base_patch16_224", "deit_base_patch16_224-b5f2ef4d"),
    "augreg-s16": _augreg("vit_small_patch16_224"),
    "augreg-b16": _augreg("vit_base_patch16_224"),
}
