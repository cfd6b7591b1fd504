"""iBOT (Zhou et al. 2022, arXiv 2111.07832): DINO, with masked patches that are to agree with the teacher's."""

from extract.encoders.dino import LOSS as LOSS_OF_DINO
from extract.encoders.dino import OF_IBOT
from extract.encoders.pretrained import JOINT, Pretrained
from extract.encoders.weights import Content, State, unwrapped
from store import BeyondClsError


def convert(content: Content) -> State:
    """The teacher's backbone: `state_dict` in the files with the backbone only, `teacher` in full checkpoints."""
    if LOSS_OF_DINO in content:
        raise BeyondClsError(f"it holds `{LOSS_OF_DINO}`, which DINO writes and iBOT does not; load it as dino-s16 or dino-b16")
    state = unwrapped(content, wrappers=("teacher", "state_dict"), prefixes=("module.", "backbone."))
    if "masked_embed" in state:
        raise BeyondClsError(
            "it holds `masked_embed`, so it is a student's backbone, expected the teacher's, which is evaluated; give "
            "checkpoint_teacher.pth, or the full checkpoint, which has both"
        )
    return state


def _ibot(model: str, folder: str) -> Pretrained:
    weights = f"https://lf3-nlp-opensource.bytetos.com/obj/nlp-opensource/archive/2022/ibot/{folder}/checkpoint_teacher.pth"
    return Pretrained(model, weights, "Apache-2.0", convert=convert, signs=OF_IBOT, family=JOINT)


# Trained on ImageNet-1K with patches masked in blocks.
ENCODERS = {
    "ibot-s16": _ibot("vit_small_patch16_224", "vits_16"),
    "ibot-b16": _ibot("vit_base_patch16_224", "vitb_16"),
    "ibot-l16": _ibot("vit_large_patch16_224", "vitl_16"),
}
