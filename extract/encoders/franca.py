"""Franca (Venkataramanan et al. 2025, arXiv 2507.14137): DINOv2's training with nested clusters; its MLPs have gates."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from timm.layers import SwiGLUPacked
from torch import Tensor, nn

from extract.encoders import dinov2
from extract.encoders.pretrained import IMAGENET, Pretrained, timm_model
from extract.encoders.published import VIT_B, VIT_L, Vit
from extract.encoders.weights import unwrapped

BLOCK = re.compile(r"^blocks\.\d+\.(\d+)\.")  # the group of a block, and its number among all


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The teacher's backbone, whose blocks are in groups; other names are those of DINOv2."""
    state = unwrapped(content, wrappers=("teacher",), prefixes=("module.", "backbone."))
    return dinov2.convert({BLOCK.sub(r"blocks.\1.", name): value for name, value in state.items()})


def _franca(model: str, mlp_ratio: float, *files: Vit) -> Pretrained:
    """`mlp_ratio`: of the first layer of the MLPs, gate and values together."""
    return Pretrained(
        model,
        "see https://github.com/valeoai/Franca (pretrained models)",
        "Franca RESEARCH-ONLY RAIL-AMS",
        {"img_size": 224, "mlp_ratio": mlp_ratio},
        make=partial(timm_model, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU),
        convert=convert,
        transform=IMAGENET,
        labels=False,
        published=files,
    )


def _official(vit: Vit, hidden: int, learnt_at: int) -> Vit:
    names = {"block": "blocks.{chunk}.{}.", "scale1": "ls1.gamma", "scale2": "ls2.gamma", "fc1": "mlp.w12", "fc2": "mlp.w3"}
    return replace(
        vit,
        patch=14,
        learnt_at=learnt_at,
        hidden=hidden,
        swiglu=True,
        at="teacher/backbone.",
        names=names,
        n_chunks=4,
        sizes={"width": "embed_dim", "depth": "depth"},  # the converter's positions are those of 224 pixels
        dropped=(
            "teacher/backbone.mask_token",
            "teacher/dino_head.last_layer.weight_v",
            "teacher/ibot_head.last_layer.weight_v",
        ),
    )


# Trained on ImageNet-21K or LAION-600M; no name shows on which.
ENCODERS = {
    "franca-b14": _franca("vit_base_patch14_dinov2", 5.3334, _official(VIT_B, 2048, 518)),
    "franca-l14": _franca("vit_large_patch14_dinov2", 5.34375, _official(VIT_L, 2736, 518), _official(VIT_L, 2736, 224)),
}
