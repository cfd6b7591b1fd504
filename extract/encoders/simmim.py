"""SimMIM (Xie et al. 2022, arXiv 2111.09886): a ViT that reconstructs the pixels of masked patches with one linear layer."""

from typing import Any

from extract.encoders.beitv2 import with_table_per_block
from extract.encoders.pretrained import LABELS, MASKED, Pretrained
from extract.encoders.weights import Content, State, unwrapped
from store import BeyondClsError

ENCODER = "encoder."
OF_SIMMIM = ("config", "max_accuracy")  # what its training script writes beside `model`
OF_BEIT = "args"  # what BEiT's writes


def convert(content: Content) -> State:
    """The official files hold `model`: `encoder.*`, whose blocks share one table of position biases, beside `decoder.*`.

    After fine-tuning there is only the encoder, with a table in every block.
    """
    dropped = ("decoder.", "encoder.mask_token")
    return with_table_per_block(unwrapped(content, dropped=dropped, renamed={r"^encoder\.": ""}))


def convert_finetuned(content: Content) -> State:
    """Tensors of a fine-tuned SimMIM under timm's names."""
    if OF_BEIT in content:
        raise BeyondClsError(
            f"it holds `{OF_BEIT}`, which BEiT's training script writes beside `model` and SimMIM's does not (`config`); "
            "load it under a name of your own with --model beit_base_patch16_224"
        )
    return convert(content)


def _simmim(weights: str, pooling: str, **fields: Any) -> Pretrained:
    # The architecture is BEiT's: no absolute positions, LayerScale, no bias of keys.
    page = f"see https://drive.google.com/file/d/{weights} (linked from https://github.com/microsoft/SimMIM)"
    return Pretrained("beit_base_patch16_224", page, "MIT", {"global_pool": pooling}, **fields)


ENCODERS = {
    # A middle block represents more than the last, which serves the reconstruction. The paper reads "the 8-th ViT block, as
    # recommended by the authors" (footnote 5 of v1), without saying whether blocks count from 0 or from 1. Its code stops
    # behind the block whose index, counted from 0, is `return_block`; 8 there is the ninth block, which is what is read here.
    "simmim-b16": _simmim(
        "1dJn6GYkwMIcoP3zqOEyW1_iQfpBi8UOw",
        "token",
        block=8,
        convert=convert,
        signs=(ENCODER,),
        family=MASKED,
        note="read at block 8 of 0 to 11: the paper's 8-th block, counted from 0 as in its code; "
        "counted from 1 it is --blocks 7",
    ),
    # Averages patch tokens, then normalises: there is no norm before pooling.
    "simmim-ft-b16": _simmim(
        "1fKgDYd0tRgyHyTnyB1CleYxjo0Gn5tEB", "avg", convert=convert_finetuned, signs=OF_SIMMIM, family=LABELS
    ),
}
