"""How families that add no learnt positions as they are know where a patch is."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.extract.encoders.published import Vit


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
    rows = torch.einsum("ni,bijd->bnjd", matrix, positions.unflatten(1, (old, old)))
    return torch.einsum("mj,bnjd->bnmd", matrix, rows).flatten(1, 2)


def added(file: Vit, positions: Tensor) -> Tensor:
    """Those of patches [1, T, D], learnt for images of this or another size."""
    return positions if file.learnt_grid == file.grid else resized(positions, file.grid, file.n_registers > 0)


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


def bias_of(table: Tensor | None) -> Tensor | float:
    """[H, N, N], which is added to logits."""
    if table is None:
        return 0.0
    return table[offsets((1 + math.isqrt(len(table) - 3)) // 2)].permute(2, 0, 1)


def rotation(file: Vit, frequencies: Tensor | None, periods: Tensor | None) -> Callable[[Tensor], Tensor]:
    """What is done to queries and keys [B, H, N, d]."""
    if frequencies is not None:
        return lambda x: turned_by_frequency(x, frequencies, file.grid, file.n_registers)
    if periods is not None:
        return lambda x: turned_by_period(x, periods, file.grid)
    return lambda x: x


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
