"""Attention of images in one block, in the form in which statistics cost least."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class TokenLayout:
    """Prefix tokens come first: [cls] at position 0 if there is one, then registers, then T patches.

    `grid`: rows and columns of patches; None where they are as many, or not known.

    Registers are neither [cls] nor patches: no statistic counts them, and rows are renormalised over patches alone.
    """

    has_cls: bool
    n_prefix: int
    grid: tuple[int, int] | None = None

    @property
    def n_registers(self) -> int:
        return self.n_prefix - int(self.has_cls)

    def rows(self, n_tokens: int) -> dict[str, int]:
        """Positions of the tokens whose rows of attention are kept: of [cls], where there is one, and of the central patch."""
        middle = self.n_prefix + centre(n_tokens - self.n_prefix, self.grid)
        return ({"cls": 0} if self.has_cls else {}) | {"centre": middle}


@dataclass
class Attention:
    """Sums over the rows of e, with which the attention map is a[i, j] = e[i, j] / z[i].

    e = exp(logit - the row's largest) is in 0…1; neither it nor `a` is kept: every statistic is a ratio of these sums.

    Attributes:
        layout: which tokens are patches.
        z: Σ_j e[i, j] over all tokens j; 1…N.
        to_patches: the same over patches j: what token i gives to all of them, times z.
        to_itself: e[i, i].
        to_cls: e[i, cls].
        products: Σ_j e[i, j] · log2 e[i, j] over patches j.
        rows: the rows of e over the patches, of [cls], where there is one, and of the central patch; by name.
    """

    layout: TokenLayout
    z: Float[Tensor, "B H N"]
    to_patches: Float[Tensor, "B H N"]
    to_itself: Float[Tensor, "B H N"]
    to_cls: Float[Tensor, "B H N"]
    products: Float[Tensor, "B H N"]
    rows: dict[str, Float[Tensor, "B H T"]]

    @classmethod
    def from_logits(
        cls,
        logits: Float[Tensor, "b H N N"],
        layout: TokenLayout,
        bounded: bool = False,
        memory: Float[Tensor, "b H N N"] | None = None,
    ) -> "Attention":
        """From logits: q · k / sqrt(d), with any bias added.

        Args:
            logits: in units of ln 2 (times log2 e), as powers of 2 take a quarter of the time of powers of e. Overwritten.
            layout: which tokens are patches.
            bounded: logits may be minus infinity (masked, or the logarithm of 0); limit them, so that 0 · ln 0 = 0.
            memory: for e, which it holds afterwards; allocated by default.
        """
        logits = logits.sub_(logits.amax(-1, keepdim=True))
        if bounded:
            logits.clamp_(min=-1e4)  # 2 to this power is 0
        e = torch.exp2(logits, out=memory)
        first = layout.n_prefix
        to_patches = e[..., first:].sum(-1)
        return cls(
            layout,
            z=to_patches + e[..., :first].sum(-1),
            to_patches=to_patches,
            to_itself=e.diagonal(dim1=-2, dim2=-1).clone(),
            to_cls=e[..., 0].clone(),
            products=logits.mul_(e)[..., first:].sum(-1),
            rows={name: e[:, :, token, first:].clone() for name, token in layout.rows(e.shape[-1]).items()},
        )

    @classmethod
    def concatenate(cls, parts: "Sequence[Attention]") -> "Attention":
        """The attention of the images of all parts, in their order."""
        sums = {
            field.name: torch.cat([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name not in ("layout", "rows")
        }
        rows = {name: torch.cat([part.rows[name] for part in parts]) for name in parts[0].rows}
        return cls(parts[0].layout, rows=rows, **sums)

    @property
    def patches(self) -> slice:
        """Positions of the tokens that are patches."""
        return slice(self.layout.n_prefix, None)

    @property
    def patch_entropy(self) -> Float[Tensor, "B H N"]:
        """Entropy in nats of each token's row over the patches alone, renormalised to sum to 1 (Eq. 5); 0…ln T.

        With p = e / s over patches, s their sum, it is ln s - Σ e · ln e / s: one logarithm a row. Exact: 0 ln 0 counts as 0.
        (The official code adds 1e-6 in the denominator and in the logarithm.) A row without any mass on patches has no
        distribution; its entropy is NaN, which the store refuses, rather than a number.
        """
        return self.to_patches.log() - math.log(2) * self.products / self.to_patches

    def maps(self) -> dict[str, Float[Tensor, "B H T"]]:
        """Rows of attention over the patches, as they are (not renormalised): of [cls] and of the central patch."""
        tokens = self.layout.rows(self.z.shape[-1])
        return {name: row / self.z[:, :, tokens[name], None] for name, row in self.rows.items()}


def centre(n_patches: int, grid: tuple[int, int] | None = None) -> int:
    """Index of the central patch of a grid, row by row; of a grid of even sides, the one right below the middle.

    `grid`: rows and columns; a square by default, and where it does not hold that number of patches.
    """
    if grid is not None and grid[0] * grid[1] == n_patches:
        return (grid[0] // 2) * grid[1] + grid[1] // 2
    side = int(n_patches**0.5)
    return (side // 2) * side + side // 2 if side * side == n_patches else n_patches // 2
