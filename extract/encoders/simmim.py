"""SimMIM (Xie et al. 2022, arXiv 2111.09886): a ViT that reconstructs the pixels of masked patches with one linear layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, LABELS, MASKED, Pretrained
from extract.encoders.published import VIT_B
from extract.encoders.relative_position import NAMES, OF_ALL, OF_EACH, with_table_per_block
from extract.encoders.weights import drop_prefixes, unwrapped
from store import BeyondClsError

ENCODER = "encoder."
OF_SIMMIM = ("config", "max_accuracy")  # what its training script writes beside `model`
OF_BEIT = "args"  # what BEiT's writes
DECODER = ("decoder.", "encoder.mask_token")


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`: `encoder.*`, whose blocks share one table of position biases, beside `decoder.*`.

    After fine-tuning there is only the encoder, with a table in every block.
    """
    state = drop_prefixes(unwrapped(content), *DECODER)
    return with_table_per_block({name.removeprefix(ENCODER): value for name, value in state.items()})


def convert_finetuned(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors of a fine-tuned SimMIM under timm's names.

    Raises:
        BeyondClsError: BEiT's training script wrote it, whose tensors have the same names and shapes.
    """
    if OF_BEIT in content:
        raise BeyondClsError(
            f"it holds `{OF_BEIT}`, which BEiT's training script writes beside `model` and SimMIM's does not (`config`); "
            "load it under a name of your own with --model beit_base_patch16_224"
        )
    return convert(content)


def _simmim(weights: str, pooling: str, block: int, **fields: Any) -> Pretrained:
    # The architecture is BEiT's: no absolute positions, LayerScale, no bias of keys.
    page = f"see {weights} (linked from https://github.com/microsoft/SimMIM)"
    arguments = {"global_pool": pooling}
    return Pretrained("beit_base_patch16_224", page, "MIT", arguments, transform=IMAGENET, block=block, **fields)


DRIVE = "https://drive.google.com/file/d"
PRETRAINED = replace(
    VIT_B,
    at=f"model/{ENCODER}",
    names=NAMES | OF_ALL,
    dropped=("model/encoder.mask_token", "model/encoder.rel_pos_bias.relative_position_index", "model/decoder.0.weight"),
)
FINETUNED = replace(
    VIT_B,
    at="model/",
    names=NAMES | OF_EACH | {"norm": "fc_norm"},
    pooled=True,
    dropped=("model/head.weight", "model/head.bias", "model/blocks.{}.attn.relative_position_index", "max_accuracy"),
)
TENSORS_ALONE = replace(FINETUNED, dropped=FINETUNED.dropped[:-1], tells=False)
EIGHTH = "read at block 8 of 0 to 11: the paper's 8-th block, counted from 0 as in its code; counted from 1 it is --blocks 7"
ENCODERS = {
    # A middle block represents more than the last, which serves the reconstruction. The paper reads "the 8-th ViT block, as
    # recommended by the authors" (footnote 5 of v1), without saying whether blocks count from 0 or from 1. Its code stops
    # behind the block whose index, counted from 0, is `return_block`; 8 there is the ninth block, which is what is read here.
    "simmim-b16": replace(
        _simmim(
            f"{DRIVE}/1dJn6GYkwMIcoP3zqOEyW1_iQfpBi8UOw",
            "token",
            8,
            convert=convert,
            labels=False,
            signs=(ENCODER,),
            family=MASKED,
            published=(PRETRAINED,),
        ),
        note=EIGHTH,
    ),
    # Averages patch tokens, then normalises: there is no norm before pooling.
    "simmim-ft-b16": _simmim(
        f"{DRIVE}/1fKgDYd0tRgyHyTnyB1CleYxjo0Gn5tEB",
        "avg",
        -1,
        convert=convert_finetuned,
        signs=OF_SIMMIM,
        family=LABELS,
        published=(FINETUNED, TENSORS_ALONE),
    ),
}
