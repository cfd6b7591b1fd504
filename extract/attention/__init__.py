"""Attention statistics: one number per image, block and attention head, from the attention map [B, H, N, N]."""

from extract.attention.capture import attention_of
from extract.attention.cls_patch_entropy import cls_patch_entropy
from extract.attention.cls_self import cls_self
from extract.attention.layout import TokenLayout
from extract.attention.patch_patch_entropy import patch_patch_entropy
from extract.attention.patch_self import patch_self

STATISTICS = {
    "cls_self": cls_self,
    "cls_patch_entropy": cls_patch_entropy,
    "patch_self": patch_self,
    "patch_patch_entropy": patch_patch_entropy,
}
NEEDS_CLS = ("cls_self", "cls_patch_entropy")

__all__ = ["NEEDS_CLS", "STATISTICS", "TokenLayout", "attention_of"]
