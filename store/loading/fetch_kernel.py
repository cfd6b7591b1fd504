"""Rows fetched by a GPU, each program a piece of one."""

# mypy: allow-untyped-defs

import triton
import triton.language as tl


@triton.jit
def fetch(memory, rows, out, n_words, BLOCK: tl.constexpr):
    """`memory`: [n, n_words], which may be pinned memory of the host; `rows`: [B]; `out`: [B, n_words]; all of int64."""
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    fetched = tl.load(memory + tl.load(rows + row) * n_words + words, mask=words < n_words)
    tl.store(out + row * n_words + words, fetched, mask=words < n_words)
