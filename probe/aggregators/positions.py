"""Positions of patches: fixed sine-cosine codes of the square grid."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from store import BeyondClsError


def sin_cos(n_patches: int, dim: int) -> Float[Tensor, "T D"]:
    """Codes of the patches row by row: D / 4 sines and cosines of the column, then of the row, in units of patches.

    Angular frequencies 10,000^(-4 i / D), i from 0 to D / 4 - 1, as in MoCo v3, MAE and the paper's official code.

    Raises:
        BeyondClsError: a grid that is not square, or a width that 4 does not divide.
    """
    side = math.isqrt(n_patches)
    if side * side != n_patches:
        raise BeyondClsError(f"there are {n_patches} patches, expected a square grid such as 14 x 14; use position='none'")
    if dim % 4:
        raise BeyondClsError(f"tokens are {dim} wide, expected a multiple of 4 for sine-cosine codes; use position='none'")
    frequencies = 10_000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angles = torch.arange(side, dtype=torch.float64)[:, None] * frequencies
    along = torch.cat([angles.sin(), angles.cos()], 1)  # [side, D / 2]
    columns, rows = along.repeat(side, 1), along.repeat_interleave(side, 0)
    return torch.cat([columns, rows], 1).float()
