"""ViTs small enough for tests: 16 patches of 8 x 8 pixels, 2 blocks, 2 attention heads, 32 wide."""

from typing import Any

import pytest
import timm
import torch
from torch import nn

from extract.encoders import Encoder, load_encoder

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}


def tiny_encoder(seed: int = 0, model: str = "vit_tiny_patch16_224", **arguments: Any) -> Encoder:
    """A random encoder of the size above, or of other `arguments`."""
    return load_encoder("tiny", model=model, arguments={**TINY, **arguments}, random_seed=seed)


def need_cait() -> None:
    """Skip the test where CaiT is taken for something else than a ViT, and refused as such."""
    if not hasattr(timm.create_model("cait_xxs24_224", depth=1), "num_prefix_tokens"):
        pytest.skip(f"timm {timm.__version__} does not give CaiT num_prefix_tokens, without which it is refused")


def sharpen(model: nn.Module, factor: float) -> None:
    """Scale what makes queries, keys and values, so that attention is far from uniform; at initialisation it nearly is."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attn.qkv.weight" in name or ("attn" in name and "_proj.weight" in name):
                parameter.mul_(factor)


class Counting(Encoder):
    """Counts the images that it is shown."""

    seen = 0

    def __call__(self, images: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        self.seen += len(images)
        return super().__call__(images, *arguments, **named)
