"""MaskFeat (Wei et al. 2022, arXiv 2112.09133): ViTs that predict the histograms of oriented gradients of masked patches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, MASKED, Pretrained
from extract.encoders.published import VIT_B, VIT_L, Vit
from extract.encoders.weights import drop_prefixes, unwrapped

# The fixed filters of the histograms, and the head that predicts them; the only norm after the blocks is the head's.
PREDICTION = ("mask_token", "hogs.", "pred_head.")


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """PySlowFast's files hold `model_state`; its MViT without pooling is a plain ViT, and names its tensors as timm does."""
    return drop_prefixes(unwrapped(content, ("model_state",)), *PREDICTION)


def _maskfeat(model: str, file: str, vit: Vit) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/pyslowfast/masked_models/{file}.pyth"
    predicted = ("mask_token", "hogs.0.weight_x", "pred_head.transforms.0.0.weight", "pred_head.projections.0.bias")
    official = replace(vit, at="model_state/", names={"norm": None}, dropped=[f"model_state/{name}" for name in predicted])
    return Pretrained(
        model,
        weights,
        "Apache-2.0",
        {"final_norm": False},
        convert=convert,
        transform=IMAGENET,
        labels=False,
        family=MASKED,
        signs=("model_state", *PREDICTION[1:]),
        published=(official,),
    )


ENCODERS = {
    "maskfeat-b16": _maskfeat("vit_base_patch16_224", "in1k_VIT_B_MaskFeat_PT_epoch_01600", VIT_B),
    "maskfeat-l16": _maskfeat("vit_large_patch16_224", "in1k_VIT_L_MaskFeat_PT_epoch_01600", VIT_L),
}
