"""BEiT v2 (Peng et al. 2022, arXiv 2208.06366): ViTs that predict the visual words of masked patches.

Relative position bias (BEiT, Bao et al. 2021, arXiv 2106.08254) is a number per offset and attention head, added to logits.
"""

import torch
from timm.layers import gen_relative_position_index

from extract.encoders.pretrained import MASKED, Pretrained
from extract.encoders.weights import Content, State, unwrapped
from store import BeyondClsError

SHARED, INDEX = "rel_pos_bias.relative_position_bias_table", "relative_position_index"
WRAPPERS = ("model", "module", "state_dict")  # `module` if DeepSpeed wrote the file
# Two blocks that see early patch tokens and the last [cls], so that [cls] gathers the image; and the heads of words.
FROM_CLS = "cls_pt_layers."
PREDICTION = ("mask_token", FROM_CLS, "cls_pt_norm.", "cls_pt_lm_head.", "lm_head.")


def convert(content: Content) -> State:
    """The official files hold `model`, whose blocks share one table of position biases; other scripts write one for each."""
    state = unwrapped(content, WRAPPERS)
    if "lm_head.weight" in state and not any(name.startswith(FROM_CLS) for name in state):
        raise BeyondClsError(
            f"it has `lm_head.*` without `{FROM_CLS}*`, so it is of the first BEiT, expected BEiT v2; load it under a name of "
            "your own with --model beit_base_patch16_224 or beit_large_patch16_224"
        )
    return with_table_per_block(unwrapped(state, dropped=PREDICTION))


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


def _beitv2(model: str) -> Pretrained:
    return Pretrained(
        model,
        f"https://github.com/addf400/files/releases/download/BEiT-v2/{model}_pt1k.pth",
        "MIT",
        # timm applies the norm before pooling, as in pretraining; published fine-tuned models have one after it.
        {"global_pool": "token"},
        convert=convert,
        family=MASKED,
        signs=(FROM_CLS,),
    )


ENCODERS = {
    "beitv2-b16": _beitv2("beitv2_base_patch16_224"),
    "beitv2-l16": _beitv2("beitv2_large_patch16_224"),
}
