"""I-JEPA (Assran et al. 2023, arXiv 2301.08243): predicts a network's output for parts of an image from other parts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, MASKED, Pretrained
from extract.encoders.published import VIT_H, Vit
from extract.encoders.weights import shorten, unwrapped
from store import BeyondClsError

ENCODER = "target_encoder"


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold two networks of this shape; only `target_encoder` sees whole images.

    Raises:
        BeyondClsError: it has no `target_encoder`; tensors at the top don't show which network they belong to.
    """
    if ENCODER not in content:
        keys = shorten([str(name) for name in content])
        raise BeyondClsError(
            f"the checkpoint of I-JEPA has no `{ENCODER}`; it holds {keys or 'nothing'}. Give the full checkpoint, "
            "as `encoder`, of the same shape, is another network"
        )
    return unwrapped(content, wrappers=(ENCODER,), prefixes=("module.",))


def _ijepa(model: str, file: str, vit: Vit) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/ijepa/{file}.pth.tar"
    checkpoint = replace(
        vit,
        at="target_encoder/module.",
        names={"cls": None},
        twins=("encoder/module.",),
        dropped=("predictor/module.mask_token", "predictor/module.predictor_embed.bias"),
    )
    return Pretrained(
        model,
        weights,
        "CC-BY-NC-4.0",
        convert=convert,
        transform=IMAGENET,
        labels=False,
        family=MASKED,
        published=(checkpoint,),
    )


# Without [cls].
ENCODERS = {
    "ijepa-h14": _ijepa("vit_huge_patch14_gap_224", "IN1K-vit.h.14-300e", VIT_H),
    "ijepa-h16-448": _ijepa("vit_huge_patch16_gap_448", "IN1K-vit.h.16-448px-300e", replace(VIT_H, patch=16, side=448)),
    "ijepa-g16": _ijepa("vit_giant_patch16_gap_224", "IN22K-vit.g.16-600e", Vit(1408, 40, 16, hidden=6144)),  # ImageNet-22K
}
