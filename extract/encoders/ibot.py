"""iBOT (Zhou et al. 2022, arXiv 2111.07832): DINO, with masked patches that are to agree with the teacher's."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from extract.encoders.dino import LOSS as LOSS_OF_DINO
from extract.encoders.dino import OF_IBOT
from extract.encoders.pretrained import IMAGENET, JOINT, Pretrained
from extract.encoders.published import VIT_B, VIT_L, VIT_S, Vit
from extract.encoders.weights import unwrapped
from store import BeyondClsError


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The teacher's backbone: `state_dict` in the files with the backbone only, `teacher` in full checkpoints.

    Raises:
        BeyondClsError: it is a full checkpoint of DINO, whose teacher would fit, or a student's backbone: only students have
            an embedding for masked patches.
    """
    if LOSS_OF_DINO in content:
        raise BeyondClsError(f"it holds `{LOSS_OF_DINO}`, which DINO writes and iBOT does not; load it as dino-s16 or dino-b16")
    state = unwrapped(content, wrappers=("teacher", "state_dict"), prefixes=("module.", "backbone."))
    if "masked_embed" in state:
        raise BeyondClsError(
            "it holds `masked_embed`, so it is a student's backbone, expected the teacher's, which is evaluated; give "
            "checkpoint_teacher.pth, or the full checkpoint, which has both"
        )
    return state


def _ibot(model: str, folder: str, vit: Vit) -> Pretrained:
    weights = f"https://lf3-nlp-opensource.bytetos.com/obj/nlp-opensource/archive/2022/ibot/{folder}/checkpoint_teacher.pth"
    full = replace(
        vit,
        at="teacher/backbone.",
        twins=("student/module.backbone.",),
        dropped=("teacher/head.last_layer2.weight_g", "student/module.backbone.masked_embed", "ibot_loss/center2"),
    )
    return Pretrained(
        model,
        weights,
        "Apache-2.0",
        convert=convert,
        transform=IMAGENET,
        labels=False,
        signs=OF_IBOT,
        family=JOINT,
        published=(replace(vit, at="state_dict/", tells=False), full),
    )


# Trained on ImageNet-1K with patches masked in blocks.
ENCODERS = {
    "ibot-s16": _ibot("vit_small_patch16_224", "vits_16", VIT_S),
    "ibot-b16": _ibot("vit_base_patch16_224", "vitb_16", VIT_B),
    "ibot-l16": _ibot("vit_large_patch16_224", "vitl_16", VIT_L),
}
