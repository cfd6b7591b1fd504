"""BEiT v2 (Peng et al. 2022, arXiv 2208.06366): ViTs that predict the visual words of masked patches."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, Pretrained
from extract.encoders.relative_position import per_block
from extract.encoders.weights import unwrapped, without

WRAPPERS = ("model", "module", "state_dict")  # `module` if DeepSpeed wrote the file
# Two blocks that see early patch tokens and the last [cls], so that [cls] gathers the image; and the heads of words.
PREDICTION = ("mask_token", "cls_pt_layers.", "cls_pt_norm.", "cls_pt_lm_head.", "lm_head.")


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The official files hold `model`, whose blocks share one table of position biases; other training gives each its own."""
    return per_block(without(unwrapped(content, WRAPPERS), *PREDICTION))


def _beitv2(model: str, file: str) -> Pretrained:
    # By "token", timm means a norm before pooling, as in pretraining; the published fine-tuned models have one behind it.
    weights = f"https://github.com/addf400/files/releases/download/BEiT-v2/{file}.pth"
    return Pretrained(model, weights, "MIT", {"global_pool": "token"}, convert=convert, transform=IMAGENET)


ENCODERS = {
    "beitv2-b16": _beitv2("beitv2_base_patch16_224", "beitv2_base_patch16_224_pt1k"),
    "beitv2-l16": _beitv2("beitv2_large_patch16_224", "beitv2_large_patch16_224_pt1k"),
}
