"""Attention with its sums from one kernel, which writes no logits: where it applies, and how it is launched."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention, centre
from extract.attention.layout import TokenLayout

WIDEST = 128  # channels of an attention head
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: rows and columns of a tile of logits; warps and stages of a block of threads."""

    rows: int
    columns: int
    warps: int = 8
    stages: int = 2


def tiles_of(in_float32: bool, width: int) -> Tiles:
    """What spills no registers, or hardly any, on the GPUs for which tests compile it.

    Args:
        in_float32: queries and keys are.
        width: of queries or values, the wider, padded.
    """
    if in_float32:
        return Tiles(32, 32)
    return Tiles(64, 64, stages=3) if width <= 64 else Tiles(64, 32)


SUMS = ("m", "z", "to_patches", "products", "to_itself", "to_cls")


def applies_to(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernel takes these: no wider than WIDEST, in a dtype of DTYPES, queries and keys in the same."""
    narrow = max(query.shape[-1], value.shape[-1]) <= WIDEST
    return narrow and query.dtype == key.dtype and query.dtype in DTYPES and value.dtype in DTYPES


def attend_fused(
    layout: TokenLayout,
    query: Float[Tensor, "B H N d"],
    key: Float[Tensor, "B H N d"],
    value: Float[Tensor, "B H N e"],
    bias: Float[Tensor, "b h N N"] | None,
    scale: float,
) -> tuple[Float[Tensor, "B H N e"], Attention]:
    """Attention and its sums, logits in float32.

    Args:
        bias: added to logits, in units of ln 2; b and h are 1 or as many as of the queries.
        scale: of the logits, with log2 e.
    """
    first = layout.n_prefix
    rows = {"cls": 0} if layout.has_cls else {}
    rows["centre"] = first + centre(query.shape[2] - first, layout.grid)
    asked = list(rows.values())
    out, sums, logits = torch.ops.beyondcls.attend(query, key, value, bias, first, asked[0], asked[-1], scale)
    m, z, to_patches, products, to_itself, to_cls = sums
    # As few numbers as these cost nothing.
    of_rows = {
        name: torch.exp2((logits[i, ..., first:] - m[..., row, None]).clamp(min=-1e4))
        for i, (name, row) in enumerate(rows.items())
    }
    return out.transpose(1, 2), Attention(layout, z, to_patches, to_itself, to_cls, products, of_rows)


@torch.library.custom_op("beyondcls::attend", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    n_prefix: int,
    first_row: int,
    second_row: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `attention_kernel` writes: [B, N, H, e], [6, B, H, N] and [2, B, H, N]."""
    from triton import cdiv, next_power_of_2

    from extract.attention.kernel import attention_kernel

    n_images, n_heads, n_tokens, width = query.shape
    out, sums, row_logits = made = _empty(query, value)
    if not out.numel():
        return made
    padded, value_padded = (max(16, next_power_of_2(n)) for n in (width, value.shape[-1]))
    tiles = tiles_of(query.dtype == torch.float32, max(padded, value_padded))
    added = query if bias is None else bias.expand(n_images, n_heads, n_tokens, n_tokens)
    attention_kernel[(cdiv(n_tokens, tiles.rows) * n_images * n_heads,)](
        query, key, value, added, out, sums, row_logits,
        *query.stride(), *key.stride(), *value.stride(), *added.stride(),
        n_heads, n_tokens, n_prefix, first_row, second_row, scale, sums.stride(0),
        width, padded, value.shape[-1], value_padded, bias is not None, "tf32x3", tiles.rows, tiles.columns,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return made


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(query, value)


def _empty(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n_images, n_heads, n_tokens, _ = query.shape
    per_row = (n_images, n_heads, n_tokens)
    out = value.new_empty(n_images, n_tokens, n_heads, value.shape[-1])
    return out, query.new_empty(len(SUMS), *per_row, dtype=torch.float32), query.new_empty(2, *per_row, dtype=torch.float32)
