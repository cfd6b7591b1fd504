"""Transformers in plain torch, from the tensors of official checkpoints; shares no code with `extract` or timm."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

State = Mapping[str, Tensor]


@dataclass
class Reference:
    """What a forward pass computes: per block, tokens as they leave it [B, N, D] and attention [B, H, N, N]."""

    tokens: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)


def linear(state: State, name: str, x: Tensor) -> Tensor:
    y = x @ state[f"{name}.weight"].T
    return y + state[f"{name}.bias"] if f"{name}.bias" in state else y


def layer_norm(state: State, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return centred / deviation * state[f"{name}.weight"] + state[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def patches_of(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[B, T, D], row by row: each p x p square times a matrix."""
    p = weight.shape[-1]
    squares = images.unfold(2, p, p).unfold(3, p, p)  # [B, 3, h, w, p, p]
    squares = squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # [B, h * w, 3 * p * p]
    embedded = squares @ weight.flatten(1).T
    return embedded if bias is None else embedded + bias


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[B, N, D] -> [B, H, N, D / H]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Output [B, N, D] and attention [B, H, N, N] of queries, keys and values [B, H, N, d]."""
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    attention = exponentials / exponentials.sum(-1, keepdim=True)
    return (attention @ v).transpose(1, 2).flatten(2), attention


def mlp(state: State, name: str, x: Tensor) -> Tensor:
    return linear(state, f"{name}.fc2", gelu(linear(state, f"{name}.fc1", x)))


def vit_blocks(
    state: State,
    x: Tensor,
    heads: int,
    *,
    prefix: str = "blocks.",
    eps: float = 1e-6,
    rotate: Callable[[Tensor], Tensor] = lambda x: x,
    feed_forward: Callable[[State, str, Tensor], Tensor] = mlp,
) -> Reference:
    """Pre-norm blocks with joint `qkv`: x + attn(norm1(x)), then x + mlp(norm2(x)); scaled by `ls1.gamma`, `ls2.gamma`."""
    out, index = Reference(), 0
    while f"{prefix}{index}.norm1.weight" in state:
        name = f"{prefix}{index}"
        q, k, v = (
            heads_of(part, heads)
            for part in linear(state, f"{name}.attn.qkv", layer_norm(state, f"{name}.norm1", x, eps)).chunk(3, -1)
        )
        mixed, attention = attend(rotate(q), rotate(k), v)
        x = x + linear(state, f"{name}.attn.proj", mixed) * state.get(f"{name}.ls1.gamma", torch.ones(()))
        fed = feed_forward(state, f"{name}.mlp", layer_norm(state, f"{name}.norm2", x, eps))
        x = x + fed * state.get(f"{name}.ls2.gamma", torch.ones(()))
        out.tokens.append(x)
        out.attention.append(attention)
        index += 1
    return out


def vit(state: State, images: Tensor, heads: int) -> Reference:
    """[cls] first if there is one; a learned position for each token."""
    x = patches_of(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"])
    if "cls_token" in state:
        x = torch.cat([state["cls_token"].expand(len(images), -1, -1), x], 1)
    return vit_blocks(state, x + state["pos_embed"], heads)
