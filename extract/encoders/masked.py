"""Masked image modelling: ViTs that predict what was masked.

MAE (He et al. 2022, arXiv 2111.06377) and SimMIM (Xie et al. 2022, arXiv 2111.09886) reconstruct pixels, MaskFeat (Wei et al.
2022, arXiv 2112.09133) histograms of oriented gradients, BEiT v2 (Peng et al. 2022, arXiv 2208.06366) visual words, I-JEPA
(Assran et al. 2023, arXiv 2301.08243) a network's output. With them MAE and SimMIM after fine-tuning on the labels of ImageNet.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import gen_relative_position_index

from extract.encoders.pretrained import LABELS, MASKED, Pretrained
from extract.encoders.weights import Content, State, shorten, unwrapped
from store import BeyondClsError

MAE_LICENCE = "CC-BY-NC-4.0"
MAE_PAGES = "https://github.com/facebookresearch/mae/blob/main"
MAE_FILES = "https://dl.fbaipublicfiles.com/mae"
# BEiT's relative position bias (Bao et al. 2021, arXiv 2106.08254), SimMIM's too: a number per offset and attention head.
SHARED, INDEX = "rel_pos_bias.relative_position_bias_table", "relative_position_index"
OF_BEIT, OF_SIMMIM = "args", ("config", "max_accuracy")  # what their training scripts write in addition to `model`
# Of BEiT v2, two blocks that see early patch tokens and the last [cls], so that it gathers the image; and the heads of words.
FROM_CLS = "cls_pt_layers."
PREDICTION = ("mask_token", FROM_CLS, "cls_pt_norm.", "cls_pt_lm_head.", "lm_head.")
HISTOGRAMS = ("hogs.", "pred_head.")  # fixed filters, and the head that predicts them; the only norm after the blocks is its
TARGET = "target_encoder"


def _mae(model: str, weights: str) -> Pretrained:
    """The official files hold `model`, with the decoder if they were written by the training script."""
    convert = partial(unwrapped, dropped=("mask_token", "decoder_"))
    return Pretrained(model, weights, MAE_LICENCE, convert=convert, signs=("decoder_",), family=MASKED)


def finetuned_mae(content: Content) -> State:
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


def _finetuned_mae(model: str, weights: str, licence: str = MAE_LICENCE) -> Pretrained:
    signs = ("fc_norm.",)  # with the classifier on [cls], files look like those of ViTs that were trained on labels alone
    average = {"global_pool": "avg"}
    return Pretrained(model, weights, licence, average, pooling, convert=finetuned_mae, family=LABELS, signs=signs)


def with_table_per_block(state: State) -> State:
    """The tensors with a table of biases in every block, as timm's BEiT has it: one that all blocks share is repeated.

    Index buffers are left out. timm computes its own; the file's must be equal, or its table has another order.
    """
    for name, value in state.items():
        if not name.endswith(INDEX):
            continue
        side = int((len(value) - 1) ** 0.5)
        if not torch.equal(value, gen_relative_position_index((side, side), class_token=True)):
            raise BeyondClsError(
                f"{name} {list(value.shape)} is not BEiT's order of a square grid after [cls]; its table would be misread"
            )
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")} if SHARED in state else ()
    tensors = {name: value for name, value in state.items() if not name.endswith(INDEX) and name != SHARED}
    return tensors | {f"blocks.{block}.attn.relative_position_bias_table": state[SHARED] for block in blocks}


def simmim(content: Content) -> State:
    """The official files hold `model`: `encoder.*`, whose blocks share one table of position biases, and `decoder.*`.

    After fine-tuning there is only the encoder, with a table in every block.
    """
    dropped = ("decoder.", "encoder.mask_token")
    return with_table_per_block(unwrapped(content, dropped=dropped, renamed={r"^encoder\.": ""}))


def finetuned_simmim(content: Content) -> State:
    """Tensors of a fine-tuned SimMIM under timm's names."""
    if OF_BEIT in content:
        raise BeyondClsError(
            f"it holds `{OF_BEIT}`, which BEiT's training script writes next to `model` and SimMIM's does not (`config`); "
            "load it under a name of your own with --model beit_base_patch16_224"
        )
    return simmim(content)


def _simmim(weights: str, pooling: str, **fields: Any) -> Pretrained:
    # The architecture is BEiT's: no absolute positions, LayerScale, no bias of keys.
    page = f"see https://drive.google.com/file/d/{weights} (linked from https://github.com/microsoft/SimMIM)"
    return Pretrained("beit_base_patch16_224", page, "MIT", {"global_pool": pooling}, **fields)


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


def beitv2(content: Content) -> State:
    """The official files hold `model`, whose blocks share one table of position biases; other scripts write one for each."""
    state = unwrapped(content, ("model", "module", "state_dict"))  # `module` if DeepSpeed wrote the file
    if "lm_head.weight" in state and not any(name.startswith(FROM_CLS) for name in state):
        raise BeyondClsError(
            f"it has `lm_head.*` without `{FROM_CLS}*`, so it is of the first BEiT, expected BEiT v2; load it under a name of "
            "your own with --model beit_base_patch16_224 or beit_large_patch16_224"
        )
    return with_table_per_block(unwrapped(state, dropped=PREDICTION))


def _beitv2(model: str) -> Pretrained:
    # timm applies the norm before pooling, as in pretraining; published fine-tuned models have one after it.
    weights, token = f"https://github.com/addf400/files/releases/download/BEiT-v2/{model}_pt1k.pth", {"global_pool": "token"}
    return Pretrained(model, weights, "MIT", token, convert=beitv2, family=MASKED, signs=(FROM_CLS,))


def ijepa(content: Content) -> State:
    """The official files hold two networks of this shape; only `target_encoder` sees whole images."""
    if TARGET not in content:
        raise BeyondClsError(
            f"the checkpoint of I-JEPA has no `{TARGET}`; it holds {shorten(content) or 'nothing'}. Give the full checkpoint, "
            "as `encoder`, of the same shape, is another network"
        )
    return unwrapped(content, wrappers=(TARGET,), prefixes=("module.",))


def _ijepa(model: str, file: str) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/ijepa/{file}.pth.tar"
    return Pretrained(model, weights, "CC-BY-NC-4.0", convert=ijepa, family=MASKED)


ENCODERS = {
    "mae-s16": _mae("vit_small_patch16_224", f"see {MAE_PAGES}/PRETRAIN.md (train one)"),  # its authors published none
    "mae-b16": _mae("vit_base_patch16_224", f"{MAE_FILES}/pretrain/mae_pretrain_vit_base.pth"),
    "mae-l16": _mae("vit_large_patch16_224", f"{MAE_FILES}/pretrain/mae_pretrain_vit_large.pth"),
    "mae-h14": _mae("vit_huge_patch14_224", f"{MAE_FILES}/pretrain/mae_pretrain_vit_huge.pth"),
    "mae-ft-s16": _finetuned_mae(
        "vit_small_patch16_224", f"see {MAE_PAGES}/FINETUNE.md (how to train them)", f"see {MAE_PAGES}/FINETUNE.md"
    ),
    "mae-ft-b16": _finetuned_mae("vit_base_patch16_224", f"{MAE_FILES}/finetune/mae_finetuned_vit_base.pth"),
    "mae-ft-l16": _finetuned_mae("vit_large_patch16_224", f"{MAE_FILES}/finetune/mae_finetuned_vit_large.pth"),
    "mae-ft-h14": _finetuned_mae("vit_huge_patch14_224", f"{MAE_FILES}/finetune/mae_finetuned_vit_huge.pth"),
    # A middle block represents more than the last, which serves the reconstruction. The paper reads "the 8-th ViT block, as
    # recommended by the authors" (footnote 5 of v1), without saying whether blocks count from 0 or from 1. Its code stops
    # behind the block whose index, counted from 0, is `return_block`; 8 there is the ninth block, which is what is read here.
    "simmim-b16": _simmim(
        "1dJn6GYkwMIcoP3zqOEyW1_iQfpBi8UOw",
        "token",
        block=8,
        convert=simmim,
        signs=("encoder.",),
        family=MASKED,
        note="read at block 8 of 0 to 11: the paper's 8-th block, counted from 0 as in its code; "
        "counted from 1 it is --blocks 7",
    ),
    # Averages patch tokens, then normalises: there is no norm before pooling.
    "simmim-ft-b16": _simmim(
        "1fKgDYd0tRgyHyTnyB1CleYxjo0Gn5tEB", "avg", convert=finetuned_simmim, signs=OF_SIMMIM, family=LABELS
    ),
    "maskfeat-b16": _maskfeat("vit_base_patch16_224", "in1k_VIT_B_MaskFeat_PT_epoch_01600"),
    "maskfeat-l16": _maskfeat("vit_large_patch16_224", "in1k_VIT_L_MaskFeat_PT_epoch_01600"),
    "beitv2-b16": _beitv2("beitv2_base_patch16_224"),
    "beitv2-l16": _beitv2("beitv2_large_patch16_224"),
    # Without [cls].
    "ijepa-h14": _ijepa("vit_huge_patch14_gap_224", "IN1K-vit.h.14-300e"),
    "ijepa-h16-448": _ijepa("vit_huge_patch16_gap_448", "IN1K-vit.h.16-448px-300e"),
    "ijepa-g16": _ijepa("vit_giant_patch16_gap_224", "IN22K-vit.g.16-600e"),  # ImageNet-22K
}
