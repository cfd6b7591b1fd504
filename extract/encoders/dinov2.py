"""DINOv2 (Oquab et al. 2023, arXiv 2304.07193), and with registers (Darcet et al. 2023, arXiv 2309.16588)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from extract.encoders.pretrained import Pretrained
from extract.encoders.weights import Content, State, unwrapped

SIDE = 16  # patches of 14 pixels along 224
TO_TIMM = {r"mlp\.w12\.": "mlp.fc1.", r"mlp\.w3\.": "mlp.fc2."}  # of SwiGLU, which only ViT-g has


def convert(content: Content) -> State:
    """The official files have tensors at the top: positions for 518 pixels, and a mask token that only training needs."""
    state = unwrapped(content, dropped=("mask_token",), renamed=TO_TIMM)
    if "pos_embed" not in state or "cls_token" not in state:
        return state  # loading reports what is missing
    registers = state.pop("register_tokens", None)
    cls_position, positions = state["pos_embed"].float().split([1, state["pos_embed"].shape[1] - 1], 1)
    positions = at_224(positions, registers is not None)
    if registers is None:
        return {**state, "pos_embed": torch.cat([cls_position, positions], 1)}
    # timm's models with registers have positions of patches only; in these files [cls] has one too.
    return {**state, "cls_token": state["cls_token"] + cls_position, "reg_token": registers, "pos_embed": positions}


def at_224(positions: Float[Tensor, "_ M D"], registers: bool) -> Float[Tensor, "_ T D"]:
    """Positions of the M patches of a square, for the T of an image of 224 pixels.

    As the official models interpolate at each forward pass: with antialiasing if they have registers; else without it, and at
    the scale of 16.1 patches instead of 16 (a guard against rounding), which moves every position.
    """
    side = math.isqrt(positions.shape[1])
    if side == SIDE or side**2 != positions.shape[1]:
        return positions
    square = positions.unflatten(1, (side, side)).permute(0, 3, 1, 2)  # [1, D, m, m]
    if registers:
        fitted = F.interpolate(square, (SIDE, SIDE), mode="bicubic", antialias=True)
    else:
        fitted = F.interpolate(square, scale_factor=((SIDE + 0.1) / side,) * 2, mode="bicubic")
    return fitted.flatten(2).transpose(1, 2)


def _dinov2(model: str, file: str) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/dinov2/{file.split('_reg')[0]}/{file}_pretrain.pth"
    return Pretrained(model, weights, "Apache-2.0", {"img_size": 224}, convert=convert)


ENCODERS = {
    "dinov2-s14": _dinov2("vit_small_patch14_dinov2", "dinov2_vits14"),
    "dinov2-b14": _dinov2("vit_base_patch14_dinov2", "dinov2_vitb14"),
    "dinov2-l14": _dinov2("vit_large_patch14_dinov2", "dinov2_vitl14"),
    "dinov2-g14": _dinov2("vit_giant_patch14_dinov2", "dinov2_vitg14"),
    "dinov2-reg-s14": _dinov2("vit_small_patch14_reg4_dinov2", "dinov2_vits14_reg4"),
    "dinov2-reg-b14": _dinov2("vit_base_patch14_reg4_dinov2", "dinov2_vitb14_reg4"),
    "dinov2-reg-l14": _dinov2("vit_large_patch14_reg4_dinov2", "dinov2_vitl14_reg4"),
    "dinov2-reg-g14": _dinov2("vit_giant_patch14_reg4_dinov2", "dinov2_vitg14_reg4"),
}
