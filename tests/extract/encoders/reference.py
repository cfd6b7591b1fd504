"""Transformers in plain torch, from the tensors of authors' files by their names; shares no code with the program or timm.

The declaration of the file says which names they are, and which of the variants below it is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.extract.encoders.published import Stages, Vit

State = dict[str, Tensor]
Tensors = Callable[[str], Tensor | None]  # by what they are for; None where there is none


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


def linear(tensors: Tensors, layer: str, x: Tensor) -> Tensor:
    return F.linear(x, tensors(f"{layer}.weight"), tensors(f"{layer}.bias"))


def normed(tensors: Tensors, layer: str, x: Tensor, eps: float, rms: bool = False) -> Tensor:
    weight, bias = tensors(f"{layer}.weight"), tensors(f"{layer}.bias")
    return F.rms_norm(x, x.shape[-1:], weight, eps) if rms else F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def projected(tensors: Tensors, x: Tensor) -> list[Tensor]:
    """Queries, keys and values [B, N, D]: of one matrix or three, with the biases that there are."""
    whole = tensors("qkv.weight")
    if whole is None:
        return [linear(tensors, part, x) for part in "qkv"]
    bias, mask = tensors("qkv.bias"), tensors("mask")
    parts = F.linear(x, whole, bias if mask is None else torch.where(mask == 1, bias, 0)).chunk(3, -1)
    return [part if (b := tensors(f"{name}.bias")) is None else part + b for name, part in zip("qkv", parts, strict=True)]


def embedded(file: Vit, tensors: Tensors, images: Tensor) -> Tensor:
    """[B, N, D]: [cls], registers, patches, with positions that are added."""
    x = F.conv2d(images, tensors("patches.weight"), tensors("patches.bias"), stride=file.patch).flatten(2).mT
    cls, registers, positions = tensors("cls"), tensors("registers"), tensors("positions")
    if positions is not None:
        n_before = int(cls is not None and file.cls_position)
        of_patches = positions[:, n_before:]  # learnt for images of this or another size
        x = x + (of_patches if of_patches.shape[1] == x.shape[1] else resized(of_patches, file.grid, file.n_registers > 0))
        cls = cls + positions[:, :1] if n_before else cls
    before = [part.expand(len(x), -1, -1) for part in (cls, registers) if part is not None]
    return torch.cat([*before, x], 1)


def vit(file: Vit, state: State, images: Tensor) -> Reference:
    """Pre-norm blocks: x + attention(norm(x)), then x + mlp(norm(x)), each scaled if there is something to scale it with."""

    def of_block(block: int | None) -> Tensors:
        return lambda role: state.get(file.name(role, block) or "")

    def scale(number: int) -> Tensor | int:
        return 1 if (values := tensors(f"scale{number}")) is None else values

    x, out = embedded(file, of_block(None), images), Reference()
    for block in range(file.depth):
        tensors = of_block(block)
        out.entering.append(x)
        y = normed(tensors, "norm1", x, file.eps, file.rms)
        if tensors("across1.weight") is not None:  # a fixed mixture of tokens
            branch = linear(tensors, "across2", F.gelu(linear(tensors, "across1", y.mT))).mT
        else:
            q, k, v = (part.unflatten(-1, (file.heads, -1)).transpose(1, 2) for part in projected(tensors, y))  # [B, H, N, d]
            if (frequencies := tensors("frequencies")) is not None:
                q, k = (turned_by_frequency(x, frequencies, file.grid, file.n_registers) for x in (q, k))
            if (periods := of_block(None)("periods")) is not None:
                q, k = (turned_by_period(x, periods, file.grid) for x in (q, k))
            logits = q @ k.mT / math.sqrt(q.shape[-1])
            for table in (tensors("tables"), of_block(None)("table")):
                if table is not None:
                    logits = logits + table[offsets((1 + math.isqrt(len(table) - 3)) // 2)].permute(2, 0, 1)  # [H, N, N]
            out.attention.append(logits.softmax(-1))
            branch = linear(tensors, "proj", (out.attention[-1] @ v).transpose(1, 2).flatten(2))
        out.branch.append(branch)
        x = x + branch * scale(1)
        hidden = linear(tensors, "fc1", normed(tensors, "norm2", x, file.eps, file.rms))
        gate, values = hidden.chunk(2, -1)
        x = x + linear(tensors, "fc2", F.silu(gate) * values if file.swiglu else F.gelu(hidden)) * scale(2)
        out.tokens.append(x)
    return out


def cubic(x: Tensor, a: float) -> Tensor:
    """Keys' kernel of parameter `a`."""
    x = x.abs()
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def resizing(old: int, new: int, registers: bool) -> Tensor:
    """[new, old]: how much of each learnt position is in each that is needed, along one axis; DINOv2's two ways."""
    matrix, places = torch.zeros(new, old, dtype=torch.double), torch.arange(old, dtype=torch.double)
    for index in range(new):
        if registers:  # a kernel as wide as it takes to see every old position, a = -0.5
            scale = old / new
            weights = cubic((places + 0.5 - (index + 0.5) * scale) / scale, -0.5)
            matrix[index] = weights / weights.sum()
        else:  # four neighbours of a place that a grid larger by 0.1 gives, a = -0.75; the border counts again outside
            place = (index + 0.5) * old / (new + 0.1) - 0.5
            for tap in range(math.floor(place) - 1, math.floor(place) + 3):
                matrix[index, min(max(tap, 0), old - 1)] += cubic(torch.tensor(place - tap, dtype=torch.double), -0.75)
    return matrix


def resized(positions: Tensor, new: int, registers: bool) -> Tensor:
    """[1, old², D] -> [1, new², D]."""
    old = math.isqrt(positions.shape[1])
    matrix = resizing(old, new, registers)
    return torch.einsum("ni,mj,bijd->bnmd", matrix, matrix, positions.unflatten(1, (old, old))).flatten(1, 2)


def offsets(grid: int) -> Tensor:
    """Which row of BEiT's table belongs to a query and a key [N, N], from its definition."""
    positions = [(row, column) for row in range(grid) for column in range(grid)]
    n_offsets = (2 * grid - 1) ** 2
    from_cls, to_cls, of_cls = n_offsets, n_offsets + 1, n_offsets + 2
    index = [[of_cls] + [from_cls] * len(positions)]
    for row, column in positions:
        among = [(row - r + grid - 1) * (2 * grid - 1) + (column - c + grid - 1) for r, c in positions]
        index.append([to_cls, *among])
    return torch.tensor(index)


def turned_by_period(x: Tensor, periods: Tensor, grid: int) -> Tensor:
    """DINOv3: numbers i and i + d / 2 of a patch turn together; half the angles are by its row, half by its column."""
    centres = (torch.arange(grid) + 0.5) / grid * 2 - 1
    rows, columns = torch.meshgrid(centres.double(), centres.double(), indexing="ij")
    angle = torch.cat([2 * math.pi * place.flatten()[:, None] / periods for place in (rows, columns)], 1)  # [T, d / 2]
    n_prefix = x.shape[2] - grid**2
    real, imaginary = x[:, :, n_prefix:].chunk(2, -1)
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([x[:, :, :n_prefix], torch.cat([turned.real, turned.imag], -1)], 2)


def turned_by_frequency(x: Tensor, frequencies: Tensor, grid: int, n_registers: int) -> Tensor:
    """CAPI, channel by channel: x_i cos θ_i ∓ x_j sin θ_i, j its partner half the channels away; registers are at the edges."""
    quarter = [step / (n_registers / 4) for step in range(n_registers // 4)]
    around = [(q, 0.0) for q in quarter] + [(1.0, q) for q in quarter]
    around += [(1 - q, 1.0) for q in quarter] + [(0.0, 1 - q) for q in quarter]
    inside = [(row / (grid - 1), column / (grid - 1)) for row in range(grid) for column in range(grid)]
    places = torch.tensor(around + inside, dtype=torch.float64)
    half, out = x.shape[-1] // 2, torch.empty_like(x)
    for i in range(2 * half):
        angle = places[:, 0] * frequencies[0, i] + places[:, 1] * frequencies[1, i]  # [N]
        partner = -x[..., i + half] if i < half else x[..., i - half]
        out[..., i] = x[..., i] * angle.cos() + partner * angle.sin()
    return out


def stages(file: Stages, state: State, images: Tensor) -> Reference:
    """Feature maps [B, D, h, w] of four stages, as tokens."""

    def norm(layer: str, x: Tensor) -> Tensor:
        return normed(state.get, layer, x.movedim(1, -1), file.eps).movedim(-1, 1)

    def conv(layer: str, x: Tensor, **options: int) -> Tensor:
        return F.conv2d(x, state[f"{layer}.weight"], state[f"{layer}.bias"], **options)

    out, x = Reference(), images
    for stage, depth in enumerate(file.depths):
        if stage:
            down = file.down.format(stage)
            x = conv(f"{down}1", norm(f"{down}0", x), stride=2)
        else:
            x = norm(f"{file.first}1", conv(f"{file.first}0", x, stride=4))
        for index in range(depth):
            block = file.block.format(stage, index)
            mixed = norm(f"{block}norm", conv(f"{block}{file.mix}", x, padding=3, groups=x.shape[1])).movedim(1, -1)
            hidden = F.gelu(linear(state.get, f"{block}{file.wide}", mixed))
            x = x + (state[f"{block}gamma"] * linear(state.get, f"{block}{file.narrow}", hidden)).movedim(-1, 1)
        out.tokens.append(x.flatten(2).mT)
    return out
