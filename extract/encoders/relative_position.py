"""Relative position bias (BEiT, Bao et al. 2021, arXiv 2106.08254): a number per offset and attention head, added to logits."""

from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor

from store import BeyondClsError

SHARED = "rel_pos_bias.relative_position_bias_table"
INDEX = "relative_position_index"
# Names in BEiT's files of tensors that a plain ViT lacks or names differently; keys have no bias.
NAMES = {
    "positions": None,
    "qkv.bias": None,
    "q.bias": "attn.q_bias",
    "v.bias": "attn.v_bias",
    "scale1": "gamma_1",
    "scale2": "gamma_2",
}
OF_ALL, OF_EACH = {"table": SHARED}, {"tables": "attn.relative_position_bias_table"}


def with_table_per_block(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with a table of biases in every block, as timm's BEiT has it: one that all blocks share is repeated.

    Index buffers are left out. timm computes its own; the file's must be equal, or its table has another order.

    Raises:
        BeyondClsError: an index is different.
    """
    for name, value in state.items():
        if name.endswith(INDEX) and not torch.equal(value, table_index(int((len(value) - 1) ** 0.5))):
            raise BeyondClsError(
                f"{name} {list(value.shape)} is not BEiT's order of a square grid after [cls]; its table would be misread"
            )
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")}
    tensors = {name: value for name, value in state.items() if not name.endswith(INDEX) and name != SHARED}
    if SHARED not in state:
        return tensors
    return tensors | {f"blocks.{block}.attn.relative_position_bias_table": state[SHARED] for block in blocks}


def table_index(side: int) -> Int[Tensor, "N N"]:
    """Row of the table for each query and key, N = 1 + side².

    Offsets of patches (query minus key) come first, row by row from the upper left; then [cls] to anything, anything to
    [cls], and [cls] to itself.
    """
    row, column = torch.arange(side * side) // side, torch.arange(side * side) % side
    width = 2 * side - 1
    down = row[:, None] - row[None, :] + side - 1
    right = column[:, None] - column[None, :] + side - 1
    index = torch.empty(1 + side * side, 1 + side * side, dtype=torch.long)
    index[1:, 1:] = down * width + right
    index[0, :], index[:, 0], index[0, 0] = width**2, width**2 + 1, width**2 + 2
    return index
