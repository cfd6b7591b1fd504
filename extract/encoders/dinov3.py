"""DINOv3 (Siméoni et al. 2025, arXiv 2508.10104): rotary positions, four registers."""

from typing import Any

import torch
from torch import nn

from extract.encoders.pretrained import Pretrained, timm_model
from extract.encoders.weights import Content, State, unwrapped
from store import BeyondClsError

TO_TIMM = {
    "storage_tokens": "reg_token",
    r"rope_embed\.periods": "rope.periods",
    r"\.ls([12])\.gamma": r".gamma_\1",
}


def make(model: str, **arguments: Any) -> nn.Module:
    """timm's model, which takes the periods of its rotary embedding from the file, where they are rounded to bfloat16."""
    vit: Any = timm_model(model, **arguments)
    vit.rope.register_buffer("periods", vit.rope.periods, persistent=True)
    return vit


def convert(content: Content) -> State:
    """The official files have tensors at the top, and masks for biases of `qkv`: keys have none."""
    published = unwrapped(content, dropped=("mask_token",), renamed=TO_TIMM)
    state: State = {}
    for name, value in published.items():
        if name.endswith("attn.qkv.bias"):
            mask = published.get(f"{name}_mask", torch.ones_like(value))
            if mask.shape != value.shape:
                raise BeyondClsError(
                    f"{name}_mask {list(mask.shape)} is for {name} {list(value.shape)}, expected the same shape"
                )
            attention = name.removesuffix("qkv.bias")
            masked = value * mask.to(value.dtype)
            state[f"{attention}q_bias"], key_bias, state[f"{attention}v_bias"] = masked.chunk(3)
            if key_bias.any():
                raise BeyondClsError(f"{name} gives keys a bias that {name}_mask does not take away; DINOv3 has none")
        elif not name.endswith("attn.qkv.bias_mask"):
            state[name] = value
    return state


def _dinov3(model: str) -> Pretrained:
    # Meta sends addresses of the files to those who accept its licence.
    weights = "see https://ai.meta.com/resources/models-and-libraries/dinov3-downloads/"
    return Pretrained(model, weights, "DINOv3 License", {"img_size": 224}, make=make, convert=convert)


# Trained on web images (LVD-1689M); the files for satellite images have other means and one norm more.
ENCODERS = {
    "dinov3-s16": _dinov3("vit_small_patch16_dinov3_qkvb"),
    "dinov3-b16": _dinov3("vit_base_patch16_dinov3_qkvb"),
    "dinov3-l16": _dinov3("vit_large_patch16_dinov3_qkvb"),
}
