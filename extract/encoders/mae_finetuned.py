"""MAE fine-tuned on the labels of ImageNet (He et al. 2022, arXiv 2111.06377)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import LABELS, Pretrained
from extract.encoders.weights import unwrapped
from store import BeyondClsError


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`, with the classifier."""
    state = unwrapped(content)
    if "head.weight" not in state and "fc_norm.weight" not in state:
        raise BeyondClsError(
            "the checkpoint has neither `head.weight` nor `fc_norm.weight`: it is of MAE before fine-tuning; "
            "load it as mae-s16, mae-b16, mae-l16 or mae-h14"
        )
    return state


def pooling(content: Mapping[str, Any]) -> dict[str, str]:
    """How the classifier saw the tokens: their average, which `fc_norm` normalised, or [cls] after the final norm.

    The official files are of the first kind; their tokens were never normalised before pooling, so these encoders have no
    final norm (`Encoder.norm`).
    """
    return {"global_pool": "avg" if "fc_norm.weight" in unwrapped(content) else "token"}


def _mae(model: str, weights: str, licence: str = "CC-BY-NC-4.0") -> Pretrained:
    return Pretrained(
        model,
        weights,
        licence,
        {"global_pool": "avg"},
        arguments_of=pooling,
        convert=convert,
        family=LABELS,
        signs=("fc_norm.",),  # with the classifier on [cls], files look like those of ViTs that were trained on labels alone
    )


RECIPE = "https://github.com/facebookresearch/mae/blob/main/FINETUNE.md"
OFFICIAL = "https://dl.fbaipublicfiles.com/mae/finetune"
ENCODERS = {
    # Its authors published no ViT-S.
    "mae-ft-s16": _mae("vit_small_patch16_224", f"see {RECIPE} (how to train them)", f"see {RECIPE}"),
    "mae-ft-b16": _mae("vit_base_patch16_224", f"{OFFICIAL}/mae_finetuned_vit_base.pth"),
    "mae-ft-l16": _mae("vit_large_patch16_224", f"{OFFICIAL}/mae_finetuned_vit_large.pth"),
    "mae-ft-h14": _mae("vit_huge_patch14_224", f"{OFFICIAL}/mae_finetuned_vit_huge.pth"),
}
