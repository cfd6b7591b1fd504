"""Trained on labels: DeiT (Touvron et al. 2021, arXiv 2012.12877), AugReg (Steiner et al. 2022, arXiv 2106.10270), ConvNeXt
(Liu et al. 2022, arXiv 2201.03545), a convolutional network whose four stages are blocks, and MLP-Mixer (Tolstikhin et al.
2021, arXiv 2105.01601), whose patch tokens are mixed by fixed weights.
"""

from collections.abc import Sequence
from functools import partial

from extract.encoders.pretrained import HALVES, LABELS, Pretrained
from extract.encoders.weights import unwrapped

# ConvNeXt's official files hold `model`; those of timm's hub have timm's names already.
RENAMED = {
    r"^downsample_layers\.0\.": "stem.",
    r"^downsample_layers\.(\d)\.": r"stages.\1.downsample.",
    r"^stages\.(\d)\.(\d+)\.dwconv\.": r"stages.\1.blocks.\2.conv_dw.",
    r"^stages\.(\d)\.(\d+)\.pwconv(\d)\.": r"stages.\1.blocks.\2.mlp.fc\3.",
    r"^stages\.(\d)\.(\d+)\.": r"stages.\1.blocks.\2.",
    r"^norm\.": "head.norm.",  # after pooling
}


def _deit(model: str, file: str) -> Pretrained:
    return Pretrained(model, f"https://dl.fbaipublicfiles.com/deit/{file}.pth", "Apache-2.0", signs=(), family=LABELS)


def _converted_from_jax(model: str, tag: str, signs: Sequence[str] | None = None) -> Pretrained:
    """Published in JAX's format; timm converted it."""
    return Pretrained(model, f"timm/{model}.{tag}", "Apache-2.0", transform=HALVES, signs=signs, family=LABELS)


def _convnext(size: str) -> Pretrained:
    weights = f"timm/convnext_{size}.fb_in1k"
    return Pretrained(f"convnext_{size}", weights, "MIT", convert=partial(unwrapped, renamed=RENAMED), family=LABELS)


# Classifiers of ViTs, which are dropped, were on [cls]; both families saw ImageNet-1K alone, without distillation. No name sets
# their files apart from one another, or from those of an MAE that was fine-tuned through [cls].
ENCODERS = {
    "deit-s16": _deit("deit_small_patch16_224", "deit_small_patch16_224-cd65a155"),
    "deit-b16": _deit("deit_base_patch16_224", "deit_base_patch16_224-b5f2ef4d"),
    "augreg-s16": _converted_from_jax("vit_small_patch16_224", "augreg_in1k", signs=()),
    "augreg-b16": _converted_from_jax("vit_base_patch16_224", "augreg_in1k", signs=()),
    "convnext-b": _convnext("base"),
    "convnext-t": _convnext("tiny"),
    "mixer-b16": _converted_from_jax("mixer_b16_224", "goog_in21k_ft_in1k"),
}
