"""Checkpoints as their authors write them: names, shapes and wrapping of the official files, with random values."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extract.encoders import ENCODERS, Encoder, load_encoder
from extract.encoders.weights import CLASSIFIER
from store.errors import BeyondClsWarning
from tests.extract.encoders.reference import Reference

Shapes = Mapping[str, Sequence[int]]


def vit_shapes(
    width: int, depth: int, patch: int, n_tokens: int, *, bias: bool = True, ratio: int = 4
) -> dict[str, Sequence[int]]:
    """Of a plain ViT with [cls]: what MAE, DINO, iBOT, DeiT and timm have in common."""
    shapes: dict[str, Sequence[int]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, n_tokens, width),
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for i in range(depth):
        linears = {
            "attn.qkv": (3 * width, width),
            "attn.proj": (width, width),
            "mlp.fc1": (ratio * width, width),
            "mlp.fc2": (width, ratio * width),
        }
        for name, shape in linears.items():
            shapes[f"blocks.{i}.{name}.weight"] = shape
            if bias or name != "attn.qkv":
                shapes[f"blocks.{i}.{name}.bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.weight": (width,), f"blocks.{i}.{name}.bias": (width,)}
    return shapes


def random_state(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    """Values that keep activations near 1 and attention far from uniform."""
    generator = torch.Generator().manual_seed(seed)

    def values(name: str, shape: Sequence[int]) -> Tensor:
        x = torch.randn(tuple(shape), generator=generator)
        if len(shape) == 1 and name.endswith("weight"):  # of a norm
            return 1 + 0.2 * x
        if len(shape) < 2 or "token" in name or "pos_embed" in name or "table" in name:
            return 0.3 * x
        return x * (2 if "qkv" in name else 1) / (x[0].numel() ** 0.5)

    return {name: values(name, shape) for name, shape in shapes.items()}


def random_images(side: int = 224) -> Tensor:
    return torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))


def empty_state(shapes: Shapes) -> dict[str, Tensor]:
    """Tensors that take no memory."""
    return {name: torch.empty(tuple(shape), device="meta") for name, shape in shapes.items()}


def double(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in state.items()}


def loaded(name: str, content: Any, folder: Path, **arguments: Any) -> Encoder:
    """The encoder that a registered name makes of a checkpoint with this content."""
    torch.save(content, folder / "checkpoint.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BeyondClsWarning)  # of many no name tells how they were trained
        return load_encoder(name, checkpoint=folder / "checkpoint.pth", arguments=arguments)


def shapes_of(name: str, **arguments: Any) -> dict[str, tuple[int, ...]]:
    """What the model of a registered name expects, at full size; no memory is taken."""
    entry = ENCODERS[name]
    with torch.device("meta"):
        model = entry.make(entry.model, **{**entry.arguments, **arguments})
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def heads_of(name: str) -> int:
    """Attention heads of a registered encoder, which no tensor of its checkpoint tells."""
    entry = ENCODERS[name]
    with torch.device("meta"):
        model: Any = entry.make(entry.model, **{**entry.arguments, "depth": 1})
    return model.blocks[0].attn.num_heads


def assert_fits(name: str, content: Any) -> None:
    """What is left of a checkpoint, but for a classifier, has the names and shapes of the registered encoder."""
    state = ENCODERS[name].convert(content)
    assert {key: tuple(value.shape) for key, value in state.items() if key not in CLASSIFIER} == shapes_of(name)


def assert_equal(encoder: Encoder, images: Tensor, expected: Reference, tolerance: float = 1e-4) -> None:
    """Tokens, maps and statistics of every block equal the reference's (in float64)."""
    layout, depth = encoder.layout, len(expected.tokens)
    assert encoder.n_blocks == depth
    encoded = encoder(images, range(depth), encoder.statistics, maps=range(depth))
    first = int(layout.has_cls)
    for block, tokens in enumerate(expected.tokens):
        close(encoded.patch[block], tokens[:, layout.n_prefix :], tolerance)
        if layout.has_cls:
            close(encoded.cls[block], tokens[:, 0], tolerance)
        if layout.n_registers:
            close(encoded.registers[block], tokens[:, first : layout.n_prefix], tolerance)
    if not encoder.attends:
        return
    patches = slice(layout.n_prefix, None)
    for block, attention in enumerate(expected.attention):
        assert attention.std() > 0.2 / attention.shape[-1], "nearly uniform attention would hide a mistake"
        among = attention[:, :, patches, patches]
        self_ = (among.diagonal(dim1=-2, dim2=-1) / among.sum(-1)).mean(-1)
        p = among / among.sum(-1, keepdim=True)
        close(encoded.statistics["patch_self"][:, block], self_, tolerance)
        close(encoded.statistics["patch_patch_entropy"][:, block], -(p * p.log()).sum(-1).mean(-1), tolerance)
        if layout.has_cls:
            close(encoded.statistics["cls_self"][:, block], attention[:, :, 0, 0], tolerance)
            close(encoded.maps[f"cls/block{block}"], attention[:, :, 0, patches], tolerance)


def close(given: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(given, expected.float(), rtol=tolerance, atol=tolerance)
