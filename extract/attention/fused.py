"""Attention with its sums from one kernel, which writes no logits, and norms from another: where they apply, and launching."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention, TokenLayout
from store import kernels

WIDEST = 128  # channels of an attention head
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: rows and columns of a tile of logits; warps and stages of a block of threads.

    All warps lie along the rows, as e is a factor of the next product: each takes 16 rows, or does again what another does.
    """

    rows: int
    columns: int
    warps: int
    stages: int = 2


@dataclass(frozen=True)
class TileChoice:
    """Tiles, and what they are for: the least capability of a GPU; most channels; float32; a bias, or none."""

    tiles: Tiles
    capability: tuple[int, int] = kernels.CAPABILITY
    width: int = WIDEST
    in_float32: bool = False
    bias: bool = True


# The first that applies. `python -m benchmarks.machine_code --candidates` prints what these and others come to.
TILES = (
    # Three products in TF32 of two parts each fill the registers: tiles are small, and where a bias or width leaves no room,
    # more warps share the registers of a tile, and products are done again.
    TileChoice(Tiles(64, 16, warps=4), capability=(9, 0), width=64, in_float32=True, bias=False),
    TileChoice(Tiles(32, 32, warps=2), width=64, in_float32=True, bias=False),
    TileChoice(Tiles(32, 32, warps=8), in_float32=True),
    # What an H200 takes least time for in a forward pass: 124 µs for a block of a ViT-B and 128 images, where 64 columns take
    # 144; 258 µs for heads of 80 channels, a ViT-H's, and 64 images, where 128 x 64 with 8 warps take 313.
    TileChoice(Tiles(64, 32, warps=4, stages=3), capability=(9, 0), width=64),
    TileChoice(Tiles(64, 32, warps=4, stages=3), capability=(9, 0), bias=False),
    # Of the tiles that leave 168 registers to a thread, so that three blocks share a multiprocessor, those with least
    # instructions for each logit.
    TileChoice(Tiles(64, 32, warps=4), width=64),
    # One block of 8 warps, as two of 4 would spill; a third stage hides what other blocks cannot. With a bias a few bytes are
    # spilled, outside the loop.
    TileChoice(Tiles(128, 32, warps=8, stages=3)),
)


def tiles_of(in_float32: bool, width: int, has_bias: bool, capability: tuple[int, int]) -> Tiles:
    """The first of TILES for these attention heads on such a GPU.

    Args:
        in_float32: queries and keys are.
        width: of queries or values, the wider, padded.
    """
    return next(
        one.tiles
        for one in TILES
        if one.in_float32 == in_float32 and width <= one.width and (one.bias or not has_bias) and capability >= one.capability
    )


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
        scale: of the logits, with log2 e; above 0.
    """
    assert scale > 0, "the kernel looks for the largest products, which are the largest logits then"
    first = layout.n_prefix
    rows = layout.rows(query.shape[2])
    asked = list(rows.values())
    out, sums, two_rows = torch.ops.beyondcls.attend(query, key, value, bias, first, asked[0], asked[-1], scale)
    _, z, to_patches, products, to_itself, to_cls = sums
    of_rows = dict(zip(rows, two_rows, strict=False))
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
    """What `attention_kernel` writes: [B, N, H, e], [6, B, H, N] and [2, B, H, T]."""
    from triton import cdiv, next_power_of_2

    from extract.attention.kernel import attention_kernel

    n_images, n_heads, n_tokens, width = query.shape
    out, sums, two_rows = made = _empty(query, key, value, bias, n_prefix)
    if not out.numel():
        return made
    padded, value_padded = (max(16, next_power_of_2(n)) for n in (width, value.shape[-1]))
    capability = torch.cuda.get_device_capability(query.device) if query.is_cuda else kernels.CAPABILITY
    tiles = tiles_of(query.dtype == torch.float32, max(padded, value_padded), bias is not None, capability)
    added = query if bias is None else bias.expand(n_images, n_heads, n_tokens, n_tokens)
    with torch.cuda.device_of(query):  # Triton launches on the current device
        attention_kernel[(cdiv(n_tokens, tiles.rows) * n_images * n_heads,)](
            query, key, value, added, out, sums, two_rows,
            *query.stride(), *key.stride(), *value.stride(), *added.stride(),
            n_heads, n_tokens, n_prefix, first_row, second_row, scale, sums.stride(0), two_rows.stride(0),
            width, padded, value.shape[-1], value_padded, bias is not None, "tf32x3", tiles.rows, tiles.columns,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return made


@_attend.register_fake
def _empty(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, n_prefix: int, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    n_images, n_heads, n_tokens, _width = query.shape
    return (
        value.new_empty(n_images, n_tokens, n_heads, value.shape[-1]),
        query.new_empty(len(SUMS), n_images, n_heads, n_tokens, dtype=torch.float32),
        query.new_empty(2, n_images, n_heads, n_tokens - n_prefix, dtype=torch.float32),
    )


def norms_of(residual: Float[Tensor, "B N D"], branch: Float[Tensor, "B N D"]) -> Float[Tensor, "2 B N"]:
    """Norms of tokens, in float32; by a kernel, which reads each once, except where there is none or the compiler makes one."""
    takes = residual.ndim == 3 and residual.shape == branch.shape and {residual.dtype, branch.dtype} <= set(DTYPES)
    if takes and not torch.compiler.is_compiling() and kernels.apply_to(branch):
        return torch.ops.beyondcls.norms(residual, branch)
    return torch.stack([tokens.float().norm(dim=-1) for tokens in (residual, branch)])


@torch.library.custom_op("beyondcls::norms", mutates_args=())
def _norms(residual: Tensor, branch: Tensor) -> Tensor:
    """What `norms_kernel` writes, [2, B, N]."""
    from triton import next_power_of_2

    from extract.attention.kernel import norms_kernel

    n_images, n_tokens, n_channels = residual.shape
    norms = _empty_norms(residual, branch)
    if norms.numel():
        strides = (*residual.stride(), *branch.stride())
        with torch.cuda.device_of(residual):
            norms_kernel[(n_images * n_tokens,)](
                residual, branch, norms, *strides, n_tokens, n_channels, norms.stride(0), next_power_of_2(n_channels)
            )
    return norms


@_norms.register_fake
def _empty_norms(residual: Tensor, branch: Tensor) -> Tensor:
    return residual.new_empty(2, *residual.shape[:2], dtype=torch.float32)
