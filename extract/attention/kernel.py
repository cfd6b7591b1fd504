"""Attention and its sums in one pass over queries and keys; imported only where it runs, as Triton may be missing.

Keys come tile by tile. Of each row the largest logit so far, m, is kept, and sums relative to it: with x the logits in units
of ln 2 and e = 2^(x - m), these are s = Σ e and w = Σ e · (x - m) over patches, z = Σ e over all keys, and Σ e · v. When m
grows by δ, all are multiplied by 2^-δ, and w, in which x - m shrinks by δ, becomes 2^-δ (w - δ s).

The instructions for each logit set the time, so the loop has no others: it takes the patches that fill tiles, of which none is
masked and s is z. The patches that are left come last, in narrow tiles with [cls] and registers. e of a token to itself and to
[cls], and two whole rows of e, come from products of their own outside the loop, in float32. Of 16 bits these products are as
exact as the tensor cores', in another order of sums: x differs by some 2^-24 Σ |q k|. Of float32 they are more exact than
TF32's three, which leave out 2^-21.
"""

# mypy: allow-untyped-defs

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)  # m before any key, and logits of what is no key; finite, so that differences are
REST = tl.constexpr(16)  # columns of tiles that are masked: the fewest that tensor cores multiply
MASKED = tl.constexpr(-1e4)  # 2 to this power is 0, and so is 0 times it, unlike 0 times infinity


@triton.jit
def rescaled_products(products, to_patches, growth, shrink):
    """w after m has grown: shrink = 2^-growth."""
    return shrink * (products - growth * to_patches)


@triton.jit
def below_all(logits, is_key, HAS_BIAS: tl.constexpr):
    """Logits, with what is no key below all that are, even below those that a bias of -infinity masks."""
    return tl.where(is_key, logits, float("-inf") if HAS_BIAS else LOWEST)


@triton.jit
def limited(below):
    """x - m where x may be -infinity; NaN stays NaN, which a maximum would hide."""
    return tl.where(below < MASKED, MASKED, below)


@triton.jit
def attend_to_tile(
    sums, q, key, value, bias, columns, is_key, is_patch, rows, scale,
    key_token, key_channel, value_token, value_channel, bias_row, bias_column,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr, n_tokens,
):  # fmt: skip
    """m, z, s, w and Σ e · v with a tile of keys more. `WHOLE`: all of them are patches, and z, which is s, is not computed."""
    largest, z, to_patches, products, mixed = sums
    channels, value_channels = tl.arange(0, PADDED), tl.arange(0, VALUE_PADDED)
    k_mask, v_mask = (channels < WIDTH)[:, None], (value_channels < VALUE_WIDTH)[None, :]
    if not WHOLE:
        k_mask, v_mask = k_mask & is_key[None, :], v_mask & is_key[:, None]
    k = tl.load(key + columns[None, :] * key_token + channels[:, None] * key_channel, mask=k_mask, other=0.0)
    logits = tl.dot(q, k, input_precision=PRECISION)
    factor = scale
    if HAS_BIAS:
        at_bias = bias + rows[:, None] * bias_row + columns[None, :] * bias_column
        logits = tl.fma(logits, scale, tl.load(at_bias, mask=(rows < n_tokens)[:, None] & is_key[None, :], other=0.0))
        factor = 1.0
    if not WHOLE:
        logits = below_all(logits, is_key[None, :], HAS_BIAS)
    now_largest = tl.maximum(largest, factor * tl.max(logits, 1))
    growth = now_largest - largest
    shrink = tl.exp2(-growth)
    below = limited(logits - now_largest[:, None]) if HAS_BIAS else tl.fma(logits, scale, -now_largest[:, None])
    e = tl.exp2(below)
    of_patches = e if WHOLE else tl.where(is_patch[None, :], e, 0.0)
    products = rescaled_products(products, to_patches, growth, shrink) + tl.sum(of_patches * below, 1)
    to_patches = shrink * to_patches + tl.sum(of_patches, 1)
    if not WHOLE:
        z = shrink * z + tl.sum(e, 1)
    at_value = value + columns[:, None] * value_token + value_channels[None, :] * value_channel
    v = tl.load(at_value, mask=v_mask, other=0.0)
    mixed = tl.dot(e.to(v.dtype), v, shrink[:, None] * mixed, input_precision=PRECISION)
    return now_largest, z, to_patches, products, mixed


@triton.jit
def attention_kernel(
    query, key, value, bias, out, sums, two_rows,
    query_image, query_head, query_token, query_channel,
    key_image, key_head, key_token, key_channel,
    value_image, value_head, value_token, value_channel,
    bias_image, bias_head, bias_row, bias_column,
    n_heads, n_tokens, n_prefix, first_row, second_row, scale, sum_stride, map_stride,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one attention head of one image.

    Args:
        query, key, value: [B, H, N, width], of any strides (_image, _head, _token, _channel).
        bias: [B, H, N, N], of any strides, in units of ln 2; read with HAS_BIAS.
        out: [B, N, H, VALUE_WIDTH], contiguous.
        sums: [6, B, H, N]: m, z, s, w, and e of the row's own token and of token 0.
        two_rows: [2, B, H, T]: e of `first_row` and `second_row`, over patches.
        scale: of the logits, with log2 e; above 0.
        sum_stride, map_stride: between the sums of `sums`, and rows of `two_rows`.
    """
    n_tiles = tl.cdiv(n_tokens, ROWS)
    tile, pair = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)  # neighbours share their keys
    image, head = pair // n_heads, pair % n_heads
    rows = tile * ROWS + tl.arange(0, ROWS)
    is_row = rows < n_tokens
    channels, value_channels = tl.arange(0, PADDED), tl.arange(0, VALUE_PADDED)
    is_channel = channels < WIDTH
    query += image * query_image + head * query_head
    key += image * key_image + head * key_head
    value += image * value_image + head * value_head
    bias += image * bias_image + head * bias_head
    row_mask = is_row[:, None] & is_channel[None, :]
    q = tl.load(query + rows[:, None] * query_token + channels[None, :] * query_channel, mask=row_mask, other=0.0)
    own = tl.load(key + rows[:, None] * key_token + channels[None, :] * key_channel, mask=row_mask, other=0.0)
    first = tl.load(key + channels * key_channel, mask=is_channel, other=0.0)
    itself = scale * tl.sum(q.to(tl.float32) * own.to(tl.float32), 1)
    to_first = scale * tl.sum(q.to(tl.float32) * first.to(tl.float32)[None, :], 1)
    if HAS_BIAS:
        itself += tl.load(bias + rows * (bias_row + bias_column), mask=is_row, other=0.0)
        to_first += tl.load(bias + rows * bias_row, mask=is_row, other=0.0)

    zeros = tl.zeros([ROWS], tl.float32)
    state = (tl.full([ROWS], LOWEST, tl.float32), zeros, zeros, zeros, tl.zeros([ROWS, VALUE_PADDED], tl.float32))
    whole = n_prefix + (n_tokens - n_prefix) // COLUMNS * COLUMNS
    for begin in range(n_prefix, whole, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        state = attend_to_tile(
            state, q, key, value, bias, columns, columns < n_tokens, None, rows, scale,
            key_token, key_channel, value_token, value_channel, bias_row, bias_column,
            WIDTH, PADDED, VALUE_WIDTH, VALUE_PADDED, HAS_BIAS, PRECISION, True, n_tokens,
        )  # fmt: skip
    largest, z, to_patches, products, mixed = state
    state = (largest, to_patches, to_patches, products, mixed)
    for begin in tl.range(whole, n_prefix + n_tokens, REST, num_stages=1):
        places = begin + tl.arange(0, REST)
        is_patch = places < n_tokens
        columns = tl.where(is_patch, places, places - n_tokens)  # behind the last patch comes the prefix
        state = attend_to_tile(
            state, q, key, value, bias, columns, columns < tl.where(is_patch, n_tokens, n_prefix), is_patch, rows, scale,
            key_token, key_channel, value_token, value_channel, bias_row, bias_column,
            WIDTH, PADDED, VALUE_WIDTH, VALUE_PADDED, HAS_BIAS, PRECISION, False, n_tokens,
        )  # fmt: skip
    largest, z, to_patches, products, mixed = state

    at_out = ((image * n_tokens + rows[:, None]) * n_heads + head) * VALUE_WIDTH + value_channels[None, :]
    tl.store(out + at_out, mixed / z[:, None], mask=is_row[:, None] & (value_channels < VALUE_WIDTH)[None, :])
    at_sum = sums + pair * n_tokens + rows
    tl.store(at_sum, largest, mask=is_row)
    tl.store(at_sum + sum_stride, z, mask=is_row)
    tl.store(at_sum + 2 * sum_stride, to_patches, mask=is_row)
    tl.store(at_sum + 3 * sum_stride, products, mask=is_row)
    tl.store(at_sum + 4 * sum_stride, tl.exp2(limited(itself - largest)), mask=is_row)
    tl.store(at_sum + 5 * sum_stride, tl.exp2(limited(to_first - largest)), mask=is_row)
    for i in tl.static_range(2):
        row = first_row if i == 0 else second_row
        if row // ROWS == tile:
            m = tl.sum(tl.where(rows == row, largest, 0.0), 0)
            of_row = tl.load(query + row * query_token + channels * query_channel, mask=is_channel, other=0.0).to(tl.float32)
            for begin in tl.range(n_prefix, n_tokens, COLUMNS, num_stages=1):
                columns = begin + tl.arange(0, COLUMNS)
                mask = (columns < n_tokens)[:, None] & is_channel[None, :]
                k = tl.load(key + columns[:, None] * key_token + channels[None, :] * key_channel, mask=mask, other=0.0)
                logits = scale * tl.sum(k.to(tl.float32) * of_row[None, :], 1)
                if HAS_BIAS:
                    logits += tl.load(bias + row * bias_row + columns * bias_column, mask=columns < n_tokens, other=0.0)
                at_map = two_rows + i * map_stride + pair * (n_tokens - n_prefix) + columns - n_prefix
                tl.store(at_map, tl.exp2(limited(logits - m)), mask=columns < n_tokens)


@triton.jit
def norms_kernel(
    residual, branch, norms,
    residual_image, residual_token, residual_channel, branch_image, branch_token, branch_channel,
    n_tokens, n_channels, norm_stride, PADDED: tl.constexpr,
):  # fmt: skip
    """Norms of one token of residual and branch, [B, N, D] of any strides: [2, B, N], `norm_stride` apart."""
    row = tl.program_id(0).to(tl.int64)
    image, token = row // n_tokens, row % n_tokens
    channels = tl.arange(0, PADDED)
    is_channel = channels < n_channels
    residual += image * residual_image + token * residual_token
    branch += image * branch_image + token * branch_token
    x = tl.load(residual + channels * residual_channel, mask=is_channel, other=0.0).to(tl.float32)
    y = tl.load(branch + channels * branch_channel, mask=is_channel, other=0.0).to(tl.float32)
    tl.store(norms + row, tl.sqrt(tl.sum(x * x, 0)))
    tl.store(norms + norm_stride + row, tl.sqrt(tl.sum(y * y, 0)))
