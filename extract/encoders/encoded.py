"""Features of a batch of images, and how one forward pass collects them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.attention import PER_BLOCK, STATISTICS, Attention, TokenLayout, facts_of
from extract.attention.fused import norms_of


@dataclass
class Encoded:
    """Features of a batch of B images: tokens by block, statistics by name, attention maps by row and block: "cls/block11".

    `average`: the mean of a block's patch tokens; `pooled`: what the encoder's own pooling makes of the last block's.
    """

    patch: dict[int, Float[Tensor, "B T D"]] = field(default_factory=dict)
    cls: dict[int, Float[Tensor, "B D"]] = field(default_factory=dict)
    registers: dict[int, Float[Tensor, "B R D"]] = field(default_factory=dict)
    average: dict[int, Float[Tensor, "B D"]] = field(default_factory=dict)
    pooled: Float[Tensor, "B W"] | None = None
    statistics: dict[str, Float[Tensor, "B L H"] | Float[Tensor, "B L"]] = field(default_factory=dict)
    maps: dict[str, Float[Tensor, "B H T"]] = field(default_factory=dict)

    def first(self, n: int) -> "Encoded":
        """Features of the first n images."""
        cut = {name: {k: x[:n] for k, x in part.items()} for name, part in vars(self).items() if isinstance(part, dict)}
        return Encoded(**cut, pooled=None if self.pooled is None else self.pooled[:n])


class Collector:
    """What hooks of one forward pass see, as features.

    Args:
        blocks, statistics, maps, vectors: as of `Encoder.__call__`.

    Attributes:
        out: the features so far, all but statistics.
        sees_attention: whether anything of it is kept.
        n_tokens: of each block that was kept.
        of_block: by name of the statistics of a block's branches, whether their norms suffice.
    """

    def __init__(
        self,
        layout: TokenLayout,
        blocks: Sequence[int],
        statistics: Sequence[str],
        maps: Sequence[int],
        vectors: Sequence[int],
    ):
        self.out, self.layout, self.blocks, self.maps, self.vectors = Encoded(), layout, blocks, maps, vectors
        self.n_tokens: dict[int, int] = {}
        self.of_attention = [name for name in statistics if name in STATISTICS]
        self.of_block = {name: facts_of(name).of_norms for name in statistics if name in PER_BLOCK}
        # Of all blocks at once, as on a GPU the start of each small operation counts; those of others are given block by block.
        self.sees_attention = bool(self.of_attention or maps)
        self._own = [name for name in self.of_attention if name in STATISTICS.own]
        self._collected: dict[str, list[Tensor]] = {name: [] for name in statistics}
        self._attended: list[Attention] = []
        self._norms: list[Tensor] = []  # [2, B, N] of a block

    def on_tokens(self, index: int, x: Any) -> None:
        """Keep what a block gives: tokens [B, N, D], a feature map [B, D, h, w], or a tuple that begins with one."""
        x = x if isinstance(x, Tensor) else x[0]
        x = x.flatten(2).transpose(1, 2) if x.ndim == 4 else x  # [B, D, h, w] -> [B, T, D]
        self.n_tokens[index] = x.shape[1]
        if index in self.vectors:
            self.out.average[index] = x[:, self.layout.n_prefix :].mean(1, dtype=torch.float32)
        if index in self.blocks:
            x = x.to(torch.float32, copy=True)  # the next block works in place in some models
            self.out.patch[index] = x[:, self.layout.n_prefix :]
            if self.layout.n_registers:
                self.out.registers[index] = x[:, int(self.layout.has_cls) : self.layout.n_prefix]
        if self.layout.has_cls:
            self.out.cls[index] = x[:, 0] if index in self.blocks else x[:, 0].to(torch.float32, copy=True)

    def on_attention(self, index: int, attention: Attention) -> None:
        for name in self.of_attention:
            if name not in self._own:
                self._collected[name].append(STATISTICS[name](attention))
        if index in self.maps:
            self.out.maps |= {f"{row}/block{index}": values for row, values in attention.maps().items()}
        if self._own:
            self._attended.append(replace(attention, rows={}))

    def on_branch(self, residual: Tensor, branch: Tensor) -> None:
        """See the residual stream [B, N, D] before one of a block's branches, and what that adds."""
        if any(self.of_block.values()):
            self._norms.append(norms_of(residual, branch))
        for name, of_norms in self.of_block.items():
            if not of_norms:
                self._collected[name].append(PER_BLOCK[name](residual.float(), branch.float(), self.layout))

    def encoded(self) -> Encoded:
        """The features, with statistics of all blocks."""
        for _, alike in groupby(self._attended, lambda attention: attention.z.shape):
            together = Attention.concatenate(parts := list(alike))
            for name in self._own:
                self._collected[name] += STATISTICS[name](together).chunk(len(parts))
        for _, equal in groupby(self._norms, lambda norm: norm.shape):
            residuals, branches = torch.cat(pairs := list(equal), 1)[..., None]
            for name in (name for name, of_norms in self.of_block.items() if of_norms):
                self._collected[name] += PER_BLOCK[name](residuals, branches, self.layout).chunk(len(pairs))
        self.out.statistics = {name: torch.stack(per_block, 1) for name, per_block in self._collected.items()}  # [B, L, H]
        return self.out
