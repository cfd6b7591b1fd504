"""Attention statistics: one number per image, block and attention head, or per image and block."""

from collections.abc import Callable

from torch import Tensor

from extract.attention.attention import Attention, TokenLayout, centre
from extract.attention.declared import StatisticFacts, declared_by
from extract.attention.statistics import (
    cls_norm_ratio,
    cls_patch_entropy,
    cls_self,
    cls_self_adjusted,
    cls_to_patches,
    patch_norm_ratio,
    patch_patch_entropy,
    patch_self,
    patch_self_raw,
    patches_to_cls,
)
from extract.attention.watch import watched
from store.plugins import Registry


def _is_per_block(name: str) -> bool:
    return name in PER_BLOCK.own


# [B, H] of the attention in one block
STATISTICS = Registry[Callable[[Attention], Tensor]]("statistics", declared_by, _is_per_block) | {
    "cls_self": cls_self,
    "cls_patch_entropy": cls_patch_entropy,
    "patch_self": patch_self,
    "patch_patch_entropy": patch_patch_entropy,
    "cls_self_adjusted": cls_self_adjusted,
    "patch_self_raw": patch_self_raw,
    "cls_to_patches": cls_to_patches,
    "patches_to_cls": patches_to_cls,
}
# [B] of the input of one block and what its attention adds
PER_BLOCK = Registry[Callable[[Tensor, Tensor, TokenLayout], Tensor]](
    "block_statistics", declared_by, STATISTICS.__contains__
) | {
    "cls_norm_ratio": cls_norm_ratio,
    "patch_norm_ratio": patch_norm_ratio,
}


def facts_of(name: str) -> StatisticFacts:
    """What the statistic of a name declares about itself.

    Raises:
        KeyError: there is none of this name.
        BeyondClsError: the package that it is of cannot be imported.
    """
    return declared_by(STATISTICS[name] if name in STATISTICS else PER_BLOCK[name])


__all__ = ["PER_BLOCK", "STATISTICS", "Attention", "TokenLayout", "centre", "facts_of", "watched"]
