"""What the attention kernel is compiled for: dtypes, widths, with and without a bias."""

import triton

from extract.attention.fused import Tiles, tiles_of
from extract.attention.kernel import attention_kernel, norms_kernel
from tests.kernels.compiling import TARGETS, Case

NAMES = ("query", "key", "value")
STRIDES = tuple(f"{name}_{of}" for name in NAMES for of in ("image", "head", "token"))
INTEGERS = (
    *STRIDES,
    *(f"bias_{of}" for of in ("image", "head", "row", "column")),
    *("n_heads", "n_tokens", "n_prefix", "first_row", "second_row", "sum_stride", "map_stride"),
)
NORM_INTEGERS = ("n_tokens", "n_channels", "norm_stride")
TRITON = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# dtype, width, whether there is a bias, targets: ViT-B and L; H, which on an A100 has the tiles of a bias; BEiT and Swin-like
# biases; the widest. Widths from 65 are padded to 128, and need what 128 needs.
KINDS = (
    ("bfloat16", 64, False, TARGETS),
    ("bfloat16", 80, False, (90, 100)),
    ("float16", 80, True, TARGETS),
    ("float32", 64, True, TARGETS),
    ("float32", 128, False, TARGETS),
)


def cases() -> list[Case]:
    """Each with the tiles of each target."""
    strides = dict.fromkeys(("residual_image", "residual_token", "branch_image", "branch_token", *NORM_INTEGERS), "i32")
    types = {"residual": "*fp32", "branch": "*bf16", "norms": "*fp32"} | strides
    constants = {"residual_channel": 1, "branch_channel": 1, "PADDED": 2048}
    norms = Case("norms, ViT-H", norms_kernel, types, constants, divisible=tuple(strides), targets=(80,))
    return [norms, *(case(dtype, width, bias, target=target) for dtype, width, bias, targets in KINDS for target in targets)]


def case(dtype: str, width: int, has_bias: bool, tiles: Tiles | None = None, target: int = 80) -> Case:
    """The kernel as it is launched for such queries, keys and values; or with other tiles."""
    padded = triton.next_power_of_2(width)
    tiles = tiles or tiles_of(dtype == "float32", padded, has_bias, divmod(target, 10))
    pointers = dict.fromkeys((*NAMES, "out"), f"*{TRITON[dtype]}") | dict.fromkeys(("bias", "sums", "two_rows"), "*fp32")
    constants = {
        **dict.fromkeys((f"{name}_channel" for name in NAMES), 1),
        **{"WIDTH": width, "PADDED": padded, "VALUE_WIDTH": width, "VALUE_PADDED": padded},
        **{"HAS_BIAS": has_bias, "PRECISION": "tf32x3", "ROWS": tiles.rows, "COLUMNS": tiles.columns},
    }
    types = pointers | dict.fromkeys(INTEGERS, "i32") | {"scale": "fp32"}
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return Case(
        f"{dtype} {width}{' bias' if has_bias else ''}", attention_kernel, types, constants, options, STRIDES, (target,)
    )
