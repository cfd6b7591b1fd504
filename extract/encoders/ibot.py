"""iBOT (Zhou et al. 2022, arXiv 2111.07832): DINO, with masked patches that are to agree with the teacher's."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, Pretrained
from extract.encoders.weights import unwrapped, without


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The teacher's backbone: `state_dict` in the files with the backbone only, `teacher` in full checkpoints.

    What stands in for masked patches is dropped; only students have it.
    """
    state = unwrapped(content, wrappers=("teacher", "state_dict"), prefixes=("module.", "backbone."))
    return without(state, "masked_embed")


def _ibot(model: str, folder: str) -> Pretrained:
    weights = f"https://lf3-nlp-opensource.bytetos.com/obj/nlp-opensource/archive/2022/ibot/{folder}/checkpoint_teacher.pth"
    return Pretrained(model, weights, "Apache-2.0", convert=convert, transform=IMAGENET)


# Trained on ImageNet-1K with patches masked in blocks.
ENCODERS = {
    "ibot-s16": _ibot("vit_small_patch16_224", "vits_16"),
    "ibot-b16": _ibot("vit_base_patch16_224", "vitb_16"),
    "ibot-l16": _ibot("vit_large_patch16_224", "vitl_16"),
}
