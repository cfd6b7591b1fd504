"""BEiT v2 (Peng et al. 2022, arXiv 2208.06366): ViTs that predict the visual words of masked patches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, MASKED, Pretrained
from extract.encoders.published import VIT_B, VIT_L, Vit
from extract.encoders.relative_position import NAMES, OF_ALL, OF_EACH, with_table_per_block
from extract.encoders.weights import drop_prefixes, unwrapped
from store import BeyondClsError

WRAPPERS = ("model", "module", "state_dict")  # `module` if DeepSpeed wrote the file
# Two blocks that see early patch tokens and the last [cls], so that [cls] gathers the image; and the heads of words.
FROM_CLS = "cls_pt_layers."
PREDICTION = ("mask_token", FROM_CLS, "cls_pt_norm.", "cls_pt_lm_head.", "lm_head.")


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`, whose blocks share one table of position biases; other scripts write one for each.

    Raises:
        BeyondClsError: it is from the first BEiT, which also predicts words, but has no blocks that read a last [cls].
    """
    state = unwrapped(content, WRAPPERS)
    if "lm_head.weight" in state and not any(name.startswith(FROM_CLS) for name in state):
        raise BeyondClsError(
            f"it has `lm_head.*` without `{FROM_CLS}*`, so it is of the first BEiT, expected BEiT v2; load it under a name of "
            "your own with --model beit_base_patch16_224 or beit_large_patch16_224"
        )
    return with_table_per_block(drop_prefixes(state, *PREDICTION))


def _beitv2(model: str, file: str, vit: Vit) -> Pretrained:
    # With "token", timm applies the norm before pooling, as in pretraining; published fine-tuned models have one after it.
    weights = f"https://github.com/addf400/files/releases/download/BEiT-v2/{file}.pth"
    words = (
        "rel_pos_bias.relative_position_index",
        "mask_token",
        "cls_pt_layers.0.norm1.weight",
        "lm_head.weight",
        "lm_head.bias",
    )
    official, deepspeed_file = (
        replace(vit, at=at, names=NAMES | OF_ALL, dropped=[f"{at}{name}" for name in words]) for at in ("model/", "module/")
    )
    timm_file = replace(vit, names=NAMES | OF_EACH, dropped=("blocks.{}.attn.relative_position_index",), tells=False)
    return Pretrained(
        model,
        weights,
        "MIT",
        {"global_pool": "token"},
        convert=convert,
        transform=IMAGENET,
        labels=False,
        family=MASKED,
        signs=(FROM_CLS,),
        published=(official, deepspeed_file, timm_file),
    )


ENCODERS = {
    "beitv2-b16": _beitv2("beitv2_base_patch16_224", "beitv2_base_patch16_224_pt1k", VIT_B),
    "beitv2-l16": _beitv2("beitv2_large_patch16_224", "beitv2_large_patch16_224_pt1k", VIT_L),
}
