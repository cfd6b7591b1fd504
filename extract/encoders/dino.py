"""DINO (Caron et al. 2021, arXiv 2104.14294): a student agrees with its average, the teacher, about views."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, JOINT, Pretrained
from extract.encoders.published import VIT_B, VIT_S, Vit
from extract.encoders.weights import names_in, unwrapped
from store import BeyondClsError

OF_IBOT = ("ibot_loss", "masked_embed", "last_layer2.")

LOSS = "dino_loss"


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The teacher's backbone: the whole file if it has the backbone only, `teacher` in full checkpoints.

    Raises:
        BeyondClsError: it is a full checkpoint of iBOT, whose teacher would fit as well.
    """
    for name in names_in(content):
        if any(f".{sign}" in f".{name}" for sign in OF_IBOT):
            raise BeyondClsError(f"it holds `{name}`, which iBOT writes and DINO does not; load it as ibot-s16, -b16 or -l16")
    return unwrapped(content, wrappers=("teacher",), prefixes=("module.", "backbone."))


def _dino(model: str, file: str, vit: Vit) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/dino/{file}/{file}.pth"
    full = replace(
        vit,
        at="teacher/backbone.",
        twins=("student/module.backbone.",),
        dropped=(
            "teacher/head.mlp.0.weight",
            "teacher/head.last_layer.weight_g",
            "student/module.head.mlp.0.weight",
            f"{LOSS}/center",
        ),
    )
    in_parallel = replace(full, at="teacher/module.backbone.", dropped=("teacher/module.head.mlp.0.weight", f"{LOSS}/center"))
    return Pretrained(
        model,
        weights,
        "Apache-2.0",
        convert=convert,
        transform=IMAGENET,
        labels=False,
        signs=(LOSS,),
        family=JOINT,
        published=(replace(vit, tells=False), full, in_parallel),
    )


ENCODERS = {
    "dino-s16": _dino("vit_small_patch16_224", "dino_deitsmall16_pretrain", VIT_S),
    "dino-s8": _dino("vit_small_patch8_224", "dino_deitsmall8_pretrain", replace(VIT_S, patch=8)),
    "dino-b16": _dino("vit_base_patch16_224", "dino_vitbase16_pretrain", VIT_B),
    "dino-b8": _dino("vit_base_patch8_224", "dino_vitbase8_pretrain", replace(VIT_B, patch=8)),
}
