"""What the attention kernel's loop costs in machine code, by capability and head width; no GPU is needed.

    python -m benchmarks.machine_code [--quick] [--candidates]

Compiles the kernel in bfloat16 for an A100 and an H100. Of the loop over keys it counts, for each warp and tile, products of
matrices (HMMA, or HGMMA of four warps), exponentials (MUFU.EX2) and all instructions; of a thread the registers and the bytes
that are spilled; of a block the shared memory; and how many blocks a multiprocessor holds. `redone`: products done / needed.
`issued`: instructions of a thread for each logit, which set the time where neither products nor memory do.
`--candidates` adds other tiles than those of `extract.attention.fused.TILES`, which were chosen by this table: least `issued`
of those that spill nothing and leave most warps to a multiprocessor. A GPU's own times (`python -m benchmarks.gpu`) go before
it. The last line is JSON: `redone` and `issued`, the highest of all.
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from extract.attention.fused import Tiles
from tests.kernels.attention_cases import case
from tests.kernels.compiling import PER_THREAD, described

WIDTHS = (64, 80, 128)
SHARED = {80: 164 << 10, 90: 228 << 10}  # bytes of a multiprocessor, of which each block takes 1 kB more than it asks for
REGISTERS, THREADS = 65536, 2048  # of a multiprocessor
CANDIDATES = [Tiles(*sizes) for sizes in ((64, 32, 4), (64, 64, 4), (64, 128, 4), (128, 32, 8), (128, 64, 8), (128, 32, 4))]
PRODUCTS = re.compile(r"\bHMMA\.(\d+?)(8)(16|8)\.|\bHGMMA\.(\d+)x(\d+)x(\d+)\.")  # of HMMA 16816 is 16 x 8 x 16
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?) ?;")
HEADER = ("width", "sm", "tiles", "matrix", "redone", "MUFU", "all", "issued", "registers", "spilled", "shared", "blocks")


@dataclass(frozen=True)
class Loop:
    """Of one warp and tile: products of matrices, multiplications that these are, exponentials, all instructions."""

    products: int
    multiplications: float
    exponentials: int
    instructions: int

    @classmethod
    def of(cls, instructions: Sequence[str]) -> "Loop":
        multiplications, products = 0.0, 0
        for match in filter(None, map(PRODUCTS.search, instructions)):
            m, n, k = (int(size) for size in match.groups() if size)
            multiplications += m * n * k / (1 if match[1] else 4)
            products += 1
        exponentials = sum("MUFU.EX2" in one for one in instructions)
        return cls(products, multiplications, exponentials, len(instructions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one width alone")
    parser.add_argument("--candidates", action="store_true", help="other tiles, too")
    given = parser.parse_args()
    print(*(f"{name:>9}" for name in HEADER))
    rows = [
        row(width, target, tiles)
        for width in WIDTHS[: 1 if given.quick else None]
        for target in SHARED
        for tiles in (None, *(CANDIDATES if given.candidates else ()))
    ]
    print(json.dumps({name: max(one[name] for one in rows) for name in ("redone", "issued")}))


def row(width: int, target: int, tiles: Tiles | None) -> dict[str, float]:
    """Print what the kernel with these tiles, or those that it has, comes to."""
    one = case("bfloat16", width, False, tiles=tiles, target=target)
    made = one.compiled(target)
    loop = Loop.of(hottest(described(made, "nvdisasm", "-c")))
    registers, stack, local = map(int, PER_THREAD.search(described(made, "cuobjdump", "--dump-resource-usage")).groups())  # type: ignore[union-attr]
    n_rows, n_columns, warps = one.constants["ROWS"], one.constants["COLUMNS"], one.options["num_warps"]
    needed = n_rows * n_columns * (one.constants["PADDED"] + one.constants["VALUE_PADDED"])
    redone = loop.multiplications * warps / needed
    issued = 32 * warps * loop.instructions / (n_rows * n_columns)
    blocks = min(
        4 * (REGISTERS // 4 // (-(-registers // 8) * 8 * 32)) // warps,
        SHARED[target] // (made.metadata.shared + 1024),
        THREADS // (32 * warps),
    )
    shape = f"{n_rows}x{n_columns}/{warps}/{one.options['num_stages']}"
    counts = (loop.products, f"{redone:.2f}", loop.exponentials, loop.instructions, f"{issued:.1f}")
    values = (width, target, shape, *counts, registers, stack + local, made.metadata.shared, blocks)
    print(*(f"{value:>9}" for value in values), flush=True)
    return {"redone": round(redone, 2), "issued": round(issued, 1)}


def hottest(code: str) -> list[str]:
    """Instructions of the innermost loop with most products: from a label to the branch back to it."""
    lines = code.splitlines()
    labels = {line.strip()[:-1]: i for i, line in enumerate(lines) if line.startswith(".L_")}
    loops = []
    for end, line in enumerate(lines):
        match = re.search(r"\bBRA `\((\.L_\w+)\)", line)
        if match and labels.get(match[1], end) < end:
            loops.append([found[1] for found in map(INSTRUCTION.match, lines[labels[match[1]] : end + 1]) if found])
    return max(loops, key=lambda loop: (Loop.of(loop).products, -len(loop)))


if __name__ == "__main__":
    main()
