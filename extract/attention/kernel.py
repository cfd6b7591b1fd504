"""Attention and its sums in one pass over queries and keys; imported only where it runs, as Triton may be missing.

Keys come tile by tile. Of each row the largest logit so far, m, is kept, and sums relative to it: with x the logits in units
of ln 2 and e = 2^(x - m), these are z = Σ e over all keys, s = Σ e and w = Σ e · (x - m) over patches, e of the row's own token
and of [cls], and Σ e · v. When m grows by δ, all are multiplied by 2^-δ, and w, in which x - m shrinks by δ, becomes
2^-δ (w - δ s).
"""

# mypy: allow-untyped-defs

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)  # m before any key; finite, so that differences are
MASKED = tl.constexpr(-1e4)  # 2 to this power is 0, and so is 0 times it, unlike 0 times infinity


@triton.jit
def rescaled_products(products, to_patches, growth, shrink):
    """w after m has grown: shrink = 2^-growth."""
    return shrink * (products - growth * to_patches)


@triton.jit
def below_all(logits, is_key):
    """Logits, with what is no key below all that are."""
    return tl.where(is_key, logits, float("-inf"))


@triton.jit
def attention_kernel(
    query, key, value, bias, out, sums, row_logits,
    query_image, query_head, query_token, query_channel,
    key_image, key_head, key_token, key_channel,
    value_image, value_head, value_token, value_channel,
    bias_image, bias_head, bias_row, bias_column,
    n_heads, n_tokens, n_prefix, first_row, second_row, scale, sum_stride,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one attention head of one image.

    Args:
        query, key, value: [B, H, N, width], of any strides (_image, _head, _token, _channel).
        bias: [B, H, N, N], of any strides, in units of ln 2; read with HAS_BIAS.
        out: [B, N, H, VALUE_WIDTH], contiguous.
        sums: [6, B, H, N]: m, z, s, w, and e of the row's own token and of token 0; `sum_stride` apart.
        row_logits: [2, B, H, N]: all logits of `first_row` and `second_row`.
        scale: of the logits, with log2 e.
    """
    n_tiles = tl.cdiv(n_tokens, ROWS)
    tile, pair = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles  # neighbours share their keys
    image, head = (pair // n_heads).to(tl.int64), pair % n_heads
    rows = tile * ROWS + tl.arange(0, ROWS)
    is_row = rows < n_tokens
    channels, value_channels = tl.arange(0, PADDED), tl.arange(0, VALUE_PADDED)
    is_channel, is_value_channel = channels < WIDTH, value_channels < VALUE_WIDTH
    query += image * query_image + head * query_head
    key += image * key_image + head * key_head
    value += image * value_image + head * value_head
    bias += image * bias_image + head * bias_head
    at_query = query + rows[:, None] * query_token + channels[None, :] * query_channel
    q = tl.load(at_query, mask=is_row[:, None] & is_channel[None, :], other=0.0)
    largest = tl.full([ROWS], LOWEST, tl.float32)
    z = tl.zeros([ROWS], tl.float32)
    to_patches = tl.zeros([ROWS], tl.float32)
    products = tl.zeros([ROWS], tl.float32)
    to_itself = tl.zeros([ROWS], tl.float32)
    to_first = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    for begin in range(0, n_tokens, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        is_key = columns < n_tokens
        at_key = key + columns[None, :] * key_token + channels[:, None] * key_channel
        k = tl.load(at_key, mask=is_key[None, :] & is_channel[:, None], other=0.0)
        logits = scale * tl.dot(q, k, input_precision=PRECISION)
        if HAS_BIAS:
            at_bias = bias + rows[:, None] * bias_row + columns[None, :] * bias_column
            logits += tl.load(at_bias, mask=is_row[:, None] & is_key[None, :], other=0.0)
        for i in tl.static_range(2):
            row = first_row if i == 0 else second_row
            if row // ROWS == tile:
                of_row = tl.sum(tl.where(rows[:, None] == row, logits, 0.0), 0)
                tl.store(row_logits + i * sum_stride + pair.to(tl.int64) * n_tokens + columns, of_row, mask=is_key)
        logits = below_all(logits, is_key[None, :])
        now_largest = tl.maximum(largest, tl.max(logits, 1))
        growth = now_largest - largest
        shrink = tl.exp2(-growth)
        below = logits - now_largest[:, None]
        below = tl.where(below < MASKED, MASKED, below)  # NaN stays NaN, which a maximum would hide
        e = tl.exp2(below)
        is_patch = (columns >= n_prefix)[None, :]
        products = rescaled_products(products, to_patches, growth, shrink) + tl.sum(tl.where(is_patch, e * below, 0.0), 1)
        to_patches = shrink * to_patches + tl.sum(tl.where(is_patch, e, 0.0), 1)
        z = shrink * z + tl.sum(e, 1)
        to_itself = shrink * to_itself
        to_first = shrink * to_first
        if (begin < (tile + 1) * ROWS) & (begin + COLUMNS > tile * ROWS):
            to_itself += tl.sum(tl.where(rows[:, None] == columns[None, :], e, 0.0), 1)
        if begin == 0:
            to_first += tl.sum(tl.where(columns[None, :] == 0, e, 0.0), 1)
        at_value = value + columns[:, None] * value_token + value_channels[None, :] * value_channel
        v = tl.load(at_value, mask=is_key[:, None] & is_value_channel[None, :], other=0.0)
        mixed = tl.dot(e.to(v.dtype), v, shrink[:, None] * mixed, input_precision=PRECISION)
        largest = now_largest
    at_out = ((image * n_tokens + rows[:, None]) * n_heads + head) * VALUE_WIDTH + value_channels[None, :]
    tl.store(out + at_out, mixed / z[:, None], mask=is_row[:, None] & is_value_channel[None, :])
    at_sum = sums + pair.to(tl.int64) * n_tokens + rows
    tl.store(at_sum, largest, mask=is_row)
    tl.store(at_sum + sum_stride, z, mask=is_row)
    tl.store(at_sum + 2 * sum_stride, to_patches, mask=is_row)
    tl.store(at_sum + 3 * sum_stride, products, mask=is_row)
    tl.store(at_sum + 4 * sum_stride, to_itself, mask=is_row)
    tl.store(at_sum + 5 * sum_stride, to_first, mask=is_row)
