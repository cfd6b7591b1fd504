"""Franca (Venkataramanan et al. 2025, arXiv 2507.14137): DINOv2's training with nested clusters; its MLPs have gates."""

from functools import partial

from timm.layers import SwiGLUPacked
from torch import nn

from extract.encoders import dinov2
from extract.encoders.pretrained import Pretrained, timm_model
from extract.encoders.weights import Content, State, unwrapped

ONE_LIST = {r"^blocks\.\d+\.(\d+)\.": r"blocks.\1."}  # the group of a block, and its number among all


def convert(content: Content) -> State:
    """The teacher's backbone, whose blocks are in groups; other names are those of DINOv2."""
    return dinov2.convert(unwrapped(content, wrappers=("teacher",), prefixes=("module.", "backbone."), renamed=ONE_LIST))


def _franca(model: str, mlp_ratio: float) -> Pretrained:
    """`mlp_ratio`: of the first layer of the MLPs, gate and values together."""
    return Pretrained(
        model,
        "see https://github.com/valeoai/Franca (pretrained models)",
        "Franca RESEARCH-ONLY RAIL-AMS",
        {"img_size": 224, "mlp_ratio": mlp_ratio},
        make=partial(timm_model, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU),
        convert=convert,
    )


# Trained on ImageNet-21K or LAION-600M; no name shows on which.
ENCODERS = {
    "franca-b14": _franca("vit_base_patch14_dinov2", 5.3334),
    "franca-l14": _franca("vit_large_patch14_dinov2", 5.34375),
}
