"""DINO (Caron et al. 2021, arXiv 2104.14294): a student agrees with its average, the teacher, about views."""

from extract.encoders.pretrained import JOINT, Pretrained
from extract.encoders.weights import Content, State, name_with, unwrapped
from store import BeyondClsError

OF_IBOT = ("ibot_loss", "masked_embed", "last_layer2.")
LOSS = "dino_loss"


def convert(content: Content) -> State:
    """The teacher's backbone: the whole file if it has the backbone only, `teacher` in full checkpoints."""
    if name := name_with(content, OF_IBOT):
        raise BeyondClsError(f"it holds `{name}`, which iBOT writes and DINO does not; load it as ibot-s16, -b16 or -l16")
    return unwrapped(content, wrappers=("teacher",), prefixes=("module.", "backbone."))


def _dino(model: str, file: str) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/dino/{file}/{file}.pth"
    return Pretrained(model, weights, "Apache-2.0", convert=convert, signs=(LOSS,), family=JOINT)


ENCODERS = {
    "dino-s16": _dino("vit_small_patch16_224", "dino_deitsmall16_pretrain"),
    "dino-s8": _dino("vit_small_patch8_224", "dino_deitsmall8_pretrain"),
    "dino-b16": _dino("vit_base_patch16_224", "dino_vitbase16_pretrain"),
    "dino-b8": _dino("vit_base_patch8_224", "dino_vitbase8_pretrain"),
}
