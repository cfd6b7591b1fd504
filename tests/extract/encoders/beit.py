"""BEiT's transformer, which SimMIM and BEiT v2 share: shapes of its official tensors, and the same in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.extract.encoders.reference import (
    Reference,
    State,
    attend,
    gelu,
    heads_of,
    layer_norm,
    linear,
    patches_of,
)

GRID = 14  # patches of 16 x 16 pixels in 224 x 224
N_OFFSETS = (2 * GRID - 1) ** 2 + 3
SHARED = "rel_pos_bias.relative_position_bias_table"


def beit_shapes(width: int, depth: int, heads: int, *, shared: bool) -> dict[str, Sequence[int]]:
    """Parameters, with one table of position biases or one in every block; `norm` is that before pooling."""
    shapes: dict[str, Sequence[int]] = {
        "cls_token": (1, 1, width),
        "patch_embed.proj.weight": (width, 3, 16, 16),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    if shared:
        shapes[SHARED] = (N_OFFSETS, heads)
    for i in range(depth):
        shapes |= block_shapes(f"blocks.{i}.", width)
        if not shared:
            shapes[f"blocks.{i}.attn.relative_position_bias_table"] = (N_OFFSETS, heads)
    return shapes


def block_shapes(prefix: str, width: int) -> dict[str, Sequence[int]]:
    shapes: dict[str, Sequence[int]] = {
        "attn.qkv.weight": (3 * width, width),
        "attn.proj.weight": (width, width),
        "mlp.fc1.weight": (4 * width, width),
        "mlp.fc1.bias": (4 * width,),
        "mlp.fc2.weight": (width, 4 * width),
    }
    norms = ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")
    vectors = (*norms, "gamma_1", "gamma_2", "attn.q_bias", "attn.v_bias", "attn.proj.bias", "mlp.fc2.bias")
    return {prefix + name: shape for name, shape in (shapes | dict.fromkeys(vectors, (width,))).items()}


def offsets() -> Tensor:
    """Which row of the table belongs to a query and a key [N, N], from its definition."""
    positions = [(row, column) for row in range(GRID) for column in range(GRID)]
    from_cls, to_cls, of_cls = N_OFFSETS - 3, N_OFFSETS - 2, N_OFFSETS - 1
    index = [[of_cls] + [from_cls] * len(positions)]
    for row, column in positions:
        among = [(row - r + GRID - 1) * (2 * GRID - 1) + (column - c + GRID - 1) for r, c in positions]
        index.append([to_cls, *among])
    return torch.tensor(index)


def with_indices(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the buffers that the official modules keep beside their tables."""
    tables = [name for name in state if name.endswith("relative_position_bias_table")]
    return state | {name.replace("bias_table", "index"): offsets() for name in tables}


def beit_reference(state: State, images: Tensor, heads: int, prefix: str = "") -> Reference:
    """Tokens and attention of every block of the transformer whose tensors begin with `prefix`."""
    state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    patches = patches_of(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"])
    x = torch.cat([state["cls_token"].expand(len(images), -1, -1), patches], 1)
    out, index = Reference(), offsets()
    while f"blocks.{len(out.tokens)}.norm1.weight" in state:
        name = f"blocks.{len(out.tokens)}"
        table = state[SHARED] if SHARED in state else state[f"{name}.attn.relative_position_bias_table"]
        queries, keys, values = (layer_norm(state, f"{name}.norm1", x) @ state[f"{name}.attn.qkv.weight"].T).chunk(3, -1)
        queries, values = queries + state[f"{name}.attn.q_bias"], values + state[f"{name}.attn.v_bias"]
        bias = table[index].permute(2, 0, 1)  # [H, N, N]
        mixed, attention = attend(heads_of(queries, heads), heads_of(keys, heads), heads_of(values, heads), bias)
        x = x + state[f"{name}.gamma_1"] * linear(state, f"{name}.attn.proj", mixed)
        hidden = gelu(linear(state, f"{name}.mlp.fc1", layer_norm(state, f"{name}.norm2", x)))
        x = x + state[f"{name}.gamma_2"] * linear(state, f"{name}.mlp.fc2", hidden)
        out.tokens.append(x)
        out.attention.append(attention)
    return out
