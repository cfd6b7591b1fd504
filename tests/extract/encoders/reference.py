"""Transformers in plain torch, from the tensors of authors' files by their names; shares no code with the program or timm.

The declaration of the file says which names they are, and which of the variants below it is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.extract.encoders.positions import added, bias_of, rotation
from tests.extract.encoders.published import Vit

State = dict[str, Tensor]


@dataclass
class Reference:
    """What a forward pass computes, of every block.

    Attributes:
        tokens: as they leave it [B, N, D].
        attention: [B, H, N, N]; none without attention.
        entering, branch: tokens as they enter it, and what its attention puts out [B, N, D].
    """

    tokens: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    entering: list[Tensor] = field(default_factory=list)
    branch: list[Tensor] = field(default_factory=list)


Tensors = Callable[[str], Tensor | None]  # by what they are for; None where there is none


def linear(tensors: Tensors, layer: str, x: Tensor) -> Tensor:
    weight, bias = tensors(f"{layer}.weight"), tensors(f"{layer}.bias")
    assert weight is not None, layer
    return x @ weight.T + (0 if bias is None else bias)


def normed(tensors: Tensors, layer: str, x: Tensor, eps: float, rms: bool = False) -> Tensor:
    x = x if rms else x - x.mean(-1, keepdim=True)
    weight, bias = tensors(f"{layer}.weight"), tensors(f"{layer}.bias")
    assert weight is not None, layer
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight + (0 if bias is None else bias)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def patches_of(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, T, D], row by row: each p x p square times a matrix."""
    p = weight.shape[-1]
    squares = images.unfold(2, p, p).unfold(3, p, p)  # [B, C, h, w, p, p]
    squares = squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # [B, h * w, C * p * p]
    return squares @ weight.flatten(1).T + bias


def projected(tensors: Tensors, x: Tensor) -> list[Tensor]:
    """Queries, keys and values [B, N, D]: of one matrix or three, with the biases that there are."""
    whole = tensors("qkv.weight")
    if whole is None:
        return [linear(tensors, part, x) for part in "qkv"]
    bias, mask = tensors("qkv.bias"), tensors("mask")
    if mask is not None:
        bias = torch.where(mask == 1, bias, 0)
    parts = x @ whole.T + (0 if bias is None else bias)
    of_each = [tensors(f"{part}.bias") for part in "qkv"]
    return [part if b is None else part + b for part, b in zip(parts.chunk(3, -1), of_each, strict=True)]


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Output [B, N, D] and attention [B, H, N, N] of queries, keys and values [B, H, N, d]."""
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    attention = exponentials / exponentials.sum(-1, keepdim=True)
    return (attention @ v).transpose(1, 2).flatten(2), attention


def embedded(file: Vit, tensors: Tensors, images: Tensor) -> Tensor:
    """[B, N, D]: [cls], registers, patches, with positions that are added."""
    weight, bias = tensors("patches.weight"), tensors("patches.bias")
    assert weight is not None
    assert bias is not None
    x = patches_of(images, weight, bias)
    cls, registers, positions = tensors("cls"), tensors("registers"), tensors("positions")
    of_cls = None
    if positions is not None:
        n_before = int(cls is not None and file.cls_position)
        of_cls = positions[:, :n_before]
        x = x + added(file, positions[:, n_before:])
    if cls is not None:
        cls = cls if of_cls is None or not of_cls.shape[1] else cls + of_cls
    before = [part.expand(len(x), -1, -1) for part in (cls, registers) if part is not None]
    return torch.cat([*before, x], 1)


def vit(file: Vit, state: State, images: Tensor) -> Reference:
    """Pre-norm blocks: x + attention(norm(x)), then x + mlp(norm(x)), each scaled if there is something to scale it with."""

    def of_block(block: int | None) -> Tensors:
        return lambda role: state.get(file.name(role, block) or "")

    def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
        return x if scale is None else x * scale

    x, out = embedded(file, of_block(None), images), Reference()
    for block in range(file.depth):
        tensors = of_block(block)
        out.entering.append(x)
        y = normed(tensors, "norm1", x, file.eps, file.rms)
        if tensors("across1.weight") is not None:  # a fixed mixture of tokens
            columns = gelu(linear(tensors, "across1", y.transpose(1, 2)))  # [B, D, S]
            branch = linear(tensors, "across2", columns).transpose(1, 2)
        else:
            q, k, v = (part.unflatten(-1, (file.heads, -1)).transpose(1, 2) for part in projected(tensors, y))  # [B, H, N, d]
            turned = rotation(file, tensors("frequencies"), state.get(file.name("periods") or ""))
            tables = tensors("tables") if tensors("tables") is not None else state.get(file.name("table") or "")
            mixed, attention = attend(turned(q), turned(k), v, bias_of(tables))
            out.attention.append(attention)
            branch = linear(tensors, "proj", mixed)
        out.branch.append(branch)
        x = x + scaled(branch, tensors("scale1"))
        hidden = linear(tensors, "fc1", normed(tensors, "norm2", x, file.eps, file.rms))
        if file.swiglu:
            gate, hidden = hidden.chunk(2, -1)
            hidden = gate / (1 + (-gate).exp()) * hidden
        else:
            hidden = gelu(hidden)
        x = x + scaled(linear(tensors, "fc2", hidden), tensors("scale2"))
        out.tokens.append(x)
    return out
