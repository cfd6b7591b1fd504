"""Joint embedding: ViTs that agree with another network about views of an image.

DINO (Caron et al. 2021, arXiv 2104.14294) and iBOT (Zhou et al. 2022, arXiv 2111.07832) agree with their average, the teacher,
iBOT about masked patches, too; MoCo v3 (Chen et al. 2021, arXiv 2104.02057) contrasts images. DINOv2 (Oquab et al. 2023, arXiv
2304.07193; registers: Darcet et al. 2023, arXiv 2309.16588), DINOv3 (Siméoni et al. 2025, arXiv 2508.10104; rotary positions)
and Franca (Venkataramanan et al. 2025, arXiv 2507.14137; nested clusters, gates in its MLPs) do both, and are of no one family.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.layers import SwiGLUPacked
from torch import Tensor, nn

from extract.encoders.pretrained import JOINT, Pretrained, timm_model
from extract.encoders.weights import Content, State, name_with, names_in, unwrapped
from store import BeyondClsError

OF_DINO = "dino_loss"
OF_IBOT = ("ibot_loss", "masked_embed", "last_layer2.")
BACKBONE = ("module.", "backbone.")  # of teachers, in full checkpoints
PARALLEL, BASE, MOMENTUM = "module.", "base_encoder.", "momentum_encoder."  # of MoCo v3
SIDE = 16  # patches of 14 pixels along 224
DINOV2_TO_TIMM = {r"mlp\.w12\.": "mlp.fc1.", r"mlp\.w3\.": "mlp.fc2."}  # of SwiGLU, which only ViT-g has
DINOV3_TO_TIMM = {
    "storage_tokens": "reg_token",
    r"rope_embed\.periods": "rope.periods",
    r"\.ls([12])\.gamma": r".gamma_\1",
}
FRANCA_TO_DINOV2 = {r"^blocks\.\d+\.(\d+)\.": r"blocks.\1."}  # the group of a block, and its number among all


def dino(content: Content) -> State:
    """The teacher's backbone: the whole file if it has the backbone only, `teacher` in full checkpoints."""
    if name := name_with(content, OF_IBOT):
        raise BeyondClsError(f"it holds `{name}`, which iBOT writes and DINO does not; load it as ibot-s16, -b16 or -l16")
    return unwrapped(content, ("teacher",), BACKBONE)


def _dino(model: str, file: str) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/dino/{file}/{file}.pth"
    return Pretrained(model, weights, "Apache-2.0", convert=dino, signs=(OF_DINO,), family=JOINT)


def ibot(content: Content) -> State:
    """The teacher's backbone: `state_dict` in the files with the backbone only, `teacher` in full checkpoints."""
    if OF_DINO in content:
        raise BeyondClsError(f"it holds `{OF_DINO}`, which DINO writes and iBOT does not; load it as dino-s16 or dino-b16")
    state = unwrapped(content, ("teacher", "state_dict"), BACKBONE)
    if "masked_embed" in state:
        raise BeyondClsError(
            "it holds `masked_embed`, so it is a student's backbone, expected the teacher's, which is evaluated; give "
            "checkpoint_teacher.pth, or the full checkpoint, which has both"
        )
    return state


def _ibot(model: str, folder: str) -> Pretrained:
    weights = f"https://lf3-nlp-opensource.bytetos.com/obj/nlp-opensource/archive/2022/ibot/{folder}/checkpoint_teacher.pth"
    return Pretrained(model, weights, "Apache-2.0", convert=ibot, signs=OF_IBOT, family=JOINT)


def mocov3(content: Content) -> State:
    """The official files hold three networks; the encoder is `base_encoder`, whose projection head is an MLP.

    Its fixed sin-cos positions are in the file as well. Checkpoints of the linear classifier hold the encoder alone, in a
    parallel module. Other ViTs would fit, and run with a number of attention heads that only these encoders have.
    """
    names = [name.removeprefix(PARALLEL) for name in names_in(content)]
    if not any(name.startswith(BASE) for name in names):
        if any(name.startswith(MOMENTUM) for name in names):
            raise BeyondClsError(
                f"it holds `{MOMENTUM}*` without `{BASE}*`, expected MoCo v3's base encoder, which the momentum encoder only "
                "follows; give the authors' file, which has both"
            )
        if not any(name.startswith(PARALLEL) for name in names_in(content)):
            raise BeyondClsError(
                f"no name in it begins with `{BASE}` or `{PARALLEL}`, as in files of MoCo v3, so it may be any ViT's, and no "
                "tensor shows the number of attention heads; give the authors' file, or, if this is its encoder, put the "
                f"prefix back: torch.save({{'{BASE}' + name: x for name, x in state.items()}}, 'mocov3.pth')"
            )
    return unwrapped(content, prefixes=(PARALLEL, BASE), dropped=("head.",))


def _mocov3(model: str, size: str, **arguments: Any) -> Pretrained:
    # Transformed as every encoder is in the paper's code. MoCo v3's own linear evaluation resizes bilinearly (torchvision's
    # default) instead of bicubically, to the same 256 pixels: --interpolation bilinear.
    weights = f"https://dl.fbaipublicfiles.com/moco-v3/vit-{size}-300ep/vit-{size}-300ep.pth.tar"
    return Pretrained(model, weights, "CC-BY-NC-4.0", arguments, convert=mocov3, signs=(BASE, MOMENTUM), family=JOINT)


def dinov2(content: Content) -> State:
    """The official files have tensors at the top: positions for 518 pixels, and a mask token that only training needs."""
    state = unwrapped(content, dropped=("mask_token",), renamed=DINOV2_TO_TIMM)
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
    return Pretrained(model, weights, "Apache-2.0", {"img_size": 224}, convert=dinov2)


def franca(content: Content) -> State:
    """The teacher's backbone, whose blocks are in groups; other names are those of DINOv2."""
    return dinov2(unwrapped(content, ("teacher",), BACKBONE, renamed=FRANCA_TO_DINOV2))


def _franca(model: str, mlp_ratio: float) -> Pretrained:
    """`mlp_ratio`: of the first layer of the MLPs, gate and values together."""
    return Pretrained(
        model,
        "see https://github.com/valeoai/Franca (pretrained models)",
        "Franca RESEARCH-ONLY RAIL-AMS",
        {"img_size": 224, "mlp_ratio": mlp_ratio},
        make=partial(timm_model, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU),
        convert=franca,
    )


def dinov3_model(model: str, **arguments: Any) -> nn.Module:
    """timm's model, which takes the periods of its rotary embedding from the file, where they are rounded to bfloat16."""
    vit: Any = timm_model(model, **arguments)
    vit.rope.register_buffer("periods", vit.rope.periods, persistent=True)
    return vit


def dinov3(content: Content) -> State:
    """The official files have tensors at the top, and masks for biases of `qkv`: keys have none."""
    published = unwrapped(content, dropped=("mask_token",), renamed=DINOV3_TO_TIMM)
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
    return Pretrained(model, weights, "DINOv3 License", {"img_size": 224}, make=dinov3_model, convert=dinov3)


ENCODERS = {
    "dino-s16": _dino("vit_small_patch16_224", "dino_deitsmall16_pretrain"),
    "dino-s8": _dino("vit_small_patch8_224", "dino_deitsmall8_pretrain"),
    "dino-b16": _dino("vit_base_patch16_224", "dino_vitbase16_pretrain"),
    "dino-b8": _dino("vit_base_patch8_224", "dino_vitbase8_pretrain"),
    "dinov2-s14": _dinov2("vit_small_patch14_dinov2", "dinov2_vits14"),
    "dinov2-b14": _dinov2("vit_base_patch14_dinov2", "dinov2_vitb14"),
    "dinov2-l14": _dinov2("vit_large_patch14_dinov2", "dinov2_vitl14"),
    "dinov2-g14": _dinov2("vit_giant_patch14_dinov2", "dinov2_vitg14"),
    "dinov2-reg-s14": _dinov2("vit_small_patch14_reg4_dinov2", "dinov2_vits14_reg4"),
    "dinov2-reg-b14": _dinov2("vit_base_patch14_reg4_dinov2", "dinov2_vitb14_reg4"),
    "dinov2-reg-l14": _dinov2("vit_large_patch14_reg4_dinov2", "dinov2_vitl14_reg4"),
    "dinov2-reg-g14": _dinov2("vit_giant_patch14_reg4_dinov2", "dinov2_vitg14_reg4"),
    # Trained on web images (LVD-1689M); the files for satellite images have other means and one norm more.
    "dinov3-s16": _dinov3("vit_small_patch16_dinov3_qkvb"),
    "dinov3-b16": _dinov3("vit_base_patch16_dinov3_qkvb"),
    "dinov3-l16": _dinov3("vit_large_patch16_dinov3_qkvb"),
    # Trained on ImageNet-21K or LAION-600M; no name shows on which.
    "franca-b14": _franca("vit_base_patch14_dinov2", 5.3334),
    "franca-l14": _franca("vit_large_patch14_dinov2", 5.34375),
    "mocov3-s16": _mocov3("vit_small_patch16_224", "s", num_heads=12),  # twice those of other ViT-S
    "mocov3-b16": _mocov3("vit_base_patch16_224", "b"),
    # Trained on ImageNet-1K with patches masked in blocks.
    "ibot-s16": _ibot("vit_small_patch16_224", "vits_16"),
    "ibot-b16": _ibot("vit_base_patch16_224", "vitb_16"),
    "ibot-l16": _ibot("vit_large_patch16_224", "vitl_16"),
}
