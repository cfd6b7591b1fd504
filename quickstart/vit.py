"""The small ViT of the quickstart, and its forward pass over a subset of the tokens."""

from typing import Any

import numpy as np
import timm
import torch
from jaxtyping import Float, Int, UInt8
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from extract.encoders.quickstart import ARCHITECTURE, CIFAR10


def small_vit(seed: int, drop_path: float = 0.0) -> VisionTransformer:
    """A ViT of 2.7 M parameters for 32 x 32 images: 64 patch tokens and [cls], 192 wide, 6 blocks, 6 attention heads.

    Args:
        drop_path: share of images for which the last block is left out in training; it rises from 0 in the first.
    """
    torch.manual_seed(seed)
    arguments: dict[str, Any] = {"num_classes": 0, "drop_path_rate": drop_path, **ARCHITECTURE}
    vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, **arguments)
    assert isinstance(vit, VisionTransformer)
    return vit


def tensors(images: UInt8[np.ndarray, "n H W 3"], device: torch.device) -> UInt8[Tensor, "n 3 H W"]:
    """The same images with channels first, on a device."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)


def normalise(images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 3 H W"]:
    """Images in 0...1 to zero mean and unit variance per channel."""
    mean, std = (torch.tensor(v, device=images.device)[:, None, None] for v in (CIFAR10["mean"], CIFAR10["std"]))
    return (images - mean) / std


def random_tokens(n: int, n_tokens: int, kept: int, generator: torch.Generator) -> Int[Tensor, "n kept"]:
    """For each of `n` images, `kept` of `n_tokens` positions drawn without replacement."""
    return torch.rand(n, n_tokens, generator=generator).argsort(1)[:, :kept]


def gather(tokens: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K D"]:
    return tokens.gather(1, positions[..., None].expand(-1, -1, tokens.shape[-1]))


def encode(
    vit: VisionTransformer, images: Float[Tensor, "B 3 H W"], positions: Int[Tensor, "B K"] | None = None
) -> Float[Tensor, "B N D"]:
    """Tokens after the final norm, [cls] first; only the patches at `positions` are computed (all of them by default)."""
    assert vit.pos_embed is not None
    assert vit.cls_token is not None
    tokens = vit.patch_embed(images) + vit.pos_embed[:, 1:]
    if positions is not None:
        tokens = gather(tokens, positions)
    cls = (vit.cls_token + vit.pos_embed[:, :1]).expand(len(images), -1, -1)
    return vit.norm(vit.blocks(torch.cat([cls, tokens], 1)))
