"""Masked autoencoders (He et al. 2022, arXiv 2111.06377): ViTs that reconstruct the pixels of masked patches.

Also fine-tuned on the labels of ImageNet. Their authors published no ViT-S.
"""

from functools import partial

from extract.encoders.pretrained import LABELS, MASKED, Pretrained
from extract.encoders.weights import Content, State, unwrapped
from store import BeyondClsError

LICENCE = "CC-BY-NC-4.0"
REPOSITORY = "https://github.com/facebookresearch/mae/blob/main"
OFFICIAL = "https://dl.fbaipublicfiles.com/mae"


def _mae(model: str, weights: str) -> Pretrained:
    """The official files hold `model`, with the decoder if they were written by the training script."""
    convert = partial(unwrapped, dropped=("mask_token", "decoder_"))
    return Pretrained(model, weights, LICENCE, convert=convert, signs=("decoder_",), family=MASKED)


def convert_finetuned(content: Content) -> State:
    """The official files hold `model`, with the classifier."""
    state = unwrapped(content)
    if "head.weight" not in state and "fc_norm.weight" not in state:
        raise BeyondClsError(
            "the checkpoint has neither `head.weight` nor `fc_norm.weight`: it is of MAE before fine-tuning; "
            "load it as mae-s16, mae-b16, mae-l16 or mae-h14"
        )
    return state


def pooling(content: Content) -> dict[str, str]:
    """How the classifier saw the tokens: their average, which `fc_norm` normalised, or [cls] after the final norm.

    The official files are of the first kind; their tokens were never normalised before pooling, so these encoders have no
    final norm (`Encoder.norm`).
    """
    return {"global_pool": "avg" if "fc_norm.weight" in unwrapped(content) else "token"}


def _finetuned(model: str, weights: str, licence: str = LICENCE) -> Pretrained:
    signs = ("fc_norm.",)  # with the classifier on [cls], files look like those of ViTs that were trained on labels alone
    average = {"global_pool": "avg"}
    return Pretrained(model, weights, licence, average, pooling, convert=convert_finetuned, family=LABELS, signs=signs)


ENCODERS = {
    "mae-s16": _mae("vit_small_patch16_224", f"see {REPOSITORY}/PRETRAIN.md (train one)"),
    "mae-b16": _mae("vit_base_patch16_224", f"{OFFICIAL}/pretrain/mae_pretrain_vit_base.pth"),
    "mae-l16": _mae("vit_large_patch16_224", f"{OFFICIAL}/pretrain/mae_pretrain_vit_large.pth"),
    "mae-h14": _mae("vit_huge_patch14_224", f"{OFFICIAL}/pretrain/mae_pretrain_vit_huge.pth"),
    "mae-ft-s16": _finetuned(
        "vit_small_patch16_224", f"see {REPOSITORY}/FINETUNE.md (how to train them)", f"see {REPOSITORY}/FINETUNE.md"
    ),
    "mae-ft-b16": _finetuned("vit_base_patch16_224", f"{OFFICIAL}/finetune/mae_finetuned_vit_base.pth"),
    "mae-ft-l16": _finetuned("vit_large_patch16_224", f"{OFFICIAL}/finetune/mae_finetuned_vit_large.pth"),
    "mae-ft-h14": _finetuned("vit_huge_patch14_224", f"{OFFICIAL}/finetune/mae_finetuned_vit_huge.pth"),
}
