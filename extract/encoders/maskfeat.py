"""MaskFeat (Wei et al. 2022, arXiv 2112.09133): ViTs that predict the histograms of oriented gradients of masked patches."""

from functools import partial

from extract.encoders.pretrained import MASKED, Pretrained
from extract.encoders.weights import unwrapped

HISTOGRAMS = ("hogs.", "pred_head.")  # fixed filters, and the head that predicts them; the only norm after the blocks is its


def _maskfeat(model: str, file: str) -> Pretrained:
    """PySlowFast's files hold `model_state`; its MViT without pooling is a plain ViT, and names its tensors as timm does."""
    return Pretrained(
        model,
        f"https://dl.fbaipublicfiles.com/pyslowfast/masked_models/{file}.pyth",
        "Apache-2.0",
        {"final_norm": False},
        convert=partial(unwrapped, wrappers=("model_state",), dropped=("mask_token", *HISTOGRAMS)),
        family=MASKED,
        signs=("model_state", *HISTOGRAMS),
    )


ENCODERS = {
    "maskfeat-b16": _maskfeat("vit_base_patch16_224", "in1k_VIT_B_MaskFeat_PT_epoch_01600"),
    "maskfeat-l16": _maskfeat("vit_large_patch16_224", "in1k_VIT_L_MaskFeat_PT_epoch_01600"),
}
