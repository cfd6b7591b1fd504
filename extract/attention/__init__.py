"""Attention statistics: one number per image, block and attention head, or per image and block."""

from extract.attention.attention import Attention, centre
from extract.attention.cls_norm_ratio import cls_norm_ratio
from extract.attention.cls_patch_entropy import cls_patch_entropy
from extract.attention.cls_self import cls_self
from extract.attention.cls_self_adjusted import cls_self_adjusted
from extract.attention.cls_to_patches import cls_to_patches
from extract.attention.declared import declared_by
from extract.attention.layout import TokenLayout
from extract.attention.patch_norm_ratio import patch_norm_ratio
from extract.attention.patch_patch_entropy import patch_patch_entropy
from extract.attention.patch_self import patch_self
from extract.attention.patch_self_raw import patch_self_raw
from extract.attention.patches_to_cls import patches_to_cls
from extract.attention.watch import watched

# [B, H] of the attention in one block
STATISTICS = {
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
PER_BLOCK = {
    "cls_norm_ratio": cls_norm_ratio,
    "patch_norm_ratio": patch_norm_ratio,
}
# Ratios that are declared to be without bound.
UNBOUNDED = tuple(name for name, f in (STATISTICS | PER_BLOCK).items() if not declared_by(f).is_bounded)
# Statistics that are declared to need [cls].
NEEDS_CLS = tuple(name for name, f in (STATISTICS | PER_BLOCK).items() if declared_by(f).of_cls)

__all__ = ["NEEDS_CLS", "PER_BLOCK", "STATISTICS", "UNBOUNDED", "Attention", "TokenLayout", "centre", "watched"]
