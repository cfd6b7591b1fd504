"""Softmax pooling in Triton: one program pools an image, or some images one after the other, by a block of queries.

Tokens come in tiles of BLOCK_T. A tile is read from the GPU's memory for the scores, in slices of channels, and once more for
the sums, soon enough to be in the L2 cache; the sums of all channels stay in registers, a tuple of [SLICE, BLOCK_Q]. Tokens and
channels come first, queries last: tensor cores want 64 rows or more, and there may be few queries. Blocks of queries of the
same images run side by side, so that all but one find the tokens in the cache too.

Products are nearly as exact as float32's own. Tokens of 16 bits enter the tensor cores as they are, and what they are
multiplied with as a sum of numbers of that dtype: three of bfloat16 (24 bits), or two of float16 (22 bits), whose range
suffices because each query is first multiplied by a power of two. Tokens in float32: products in TF32 of both numbers' two
parts ("tf32x3", 21 bits). Of int8 and int4 bfloat16 holds exactly what is stored, and scales are applied to the products. Sums
are in float32. There are no atomics: the same inputs give the same bits.
"""

# mypy: allow-untyped-defs

import triton
import triton.language as tl

SHIFT = tl.constexpr(16384.0)  # 2^14: what is at most 1 keeps its 22 bits in two float16 after this


@triton.jit
def pool(
    tokens,
    scales,
    queries,
    bias,
    vectors,
    weights,
    n_tokens,
    n_queries,
    queries_by_image,
    bias_by_image,
    bias_by_query,
    bias_by_token,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Vectors [B, Q, D] and weights [B, Q, T] of one image and block of queries.

    `…_by_image`, `…_by_query`, `…_by_token` are strides, 0 of what is shared. GROUP: of int8 and int4, channels that
    share a scale, a multiple of SLICE or all.
    """
    n_blocks = tl.cdiv(n_queries, BLOCK_Q)
    image = (tl.program_id(0) // n_blocks).to(tl.int64)
    query = tl.program_id(0) % n_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    has_query = query < n_queries
    tokens += image * n_tokens * _row_length(tokens, DIM)
    scales += image * n_tokens * (DIM // GROUP)
    vectors += image * n_queries * DIM
    weights += image * n_queries * n_tokens
    rows = queries + image * queries_by_image + query * DIM
    scale = tl.full([BLOCK_Q], 1.0, tl.float32)
    inverse = scale
    if tokens.dtype.element_ty == tl.float16:
        largest = tl.zeros([BLOCK_Q], tl.float32)
        for start in range(0, DIM, SLICE):
            largest = tl.maximum(largest, tl.max(tl.abs(_channels(rows, has_query, start, DIM, SLICE)), 0))
        scale, inverse = _scale(largest)

    highest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_Q], tl.float32)
    sums = _zeros(DIM, SLICE, BLOCK_Q)
    for first in range(0, n_tokens, BLOCK_T):
        at = first + tl.arange(0, BLOCK_T)
        mask = (at < n_tokens)[:, None] & has_query[None, :]
        s = _scores(tokens, scales, at, n_tokens, rows, has_query, scale, DIM, GROUP, SLICE) * inverse[None, :]
        if HAS_BIAS:
            added = bias + image * bias_by_image + query[None, :] * bias_by_query + at[:, None] * bias_by_token
            s += tl.load(added, mask, 0.0).to(tl.float32)
        s = tl.where((at < n_tokens)[:, None], s, float("-inf"))
        tl.store(weights + query[None, :] * n_tokens + at[:, None], s, mask)
        before = highest
        highest = tl.maximum(highest, tl.max(s, 0))
        base = tl.where(highest == float("-inf"), 0.0, highest)  # where a bias of -inf has left out all tokens so far
        p = tl.exp(s - base[None, :]) * SHIFT
        shrunk = tl.exp(before - base)
        mass = mass * shrunk + tl.sum(p, 0)
        sums = _add(sums, shrunk, p, tokens, scales, at, n_tokens, DIM, GROUP, SLICE)
    _store(vectors + query * DIM, has_query, sums, 1 / mass, DIM, SLICE)

    tl.debug_barrier()  # what other threads of this program have stored is read now
    base = tl.where(highest == float("-inf"), 0.0, highest)
    for first in tl.range(0, n_tokens, BLOCK_T, num_stages=1):
        at = first + tl.arange(0, BLOCK_T)
        mask = (at < n_tokens)[:, None] & has_query[None, :]
        place = weights + query[None, :] * n_tokens + at[:, None]
        p = tl.exp(tl.load(place, mask, 0.0) - base[None, :]) * SHIFT
        tl.store(place, p / mass[None, :], mask)


@triton.jit
def pool_backward(
    tokens,
    scales,
    vectors,
    weights,
    of_vectors,
    of_weights,
    of_queries,
    of_scores,
    n_images,
    n_tokens,
    n_queries,
    group,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    OF_WEIGHTS: tl.constexpr,
    OF_SCORES: tl.constexpr,
):
    """Gradients [G, Q, D] of a block of queries, summed over the images of a group; and of the scores, [B, Q, T].

    s' = a (v' · x + a' - v' · v - a' · a), and Σ s' x. `OF_WEIGHTS`: there is a gradient a'; `OF_SCORES`: s' is wanted.
    """
    n_blocks = tl.cdiv(n_queries, BLOCK_Q)
    number = (tl.program_id(0) // n_blocks).to(tl.int64)
    query = tl.program_id(0) % n_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    has_query = query < n_queries
    largest = tl.zeros([BLOCK_Q], tl.float32)
    sums = _zeros(DIM, SLICE, BLOCK_Q)
    for image in range(number * group, tl.minimum((number + 1) * group, n_images)):
        x = tokens + image * n_tokens * _row_length(tokens, DIM)
        x_scales = scales + image * n_tokens * (DIM // GROUP)
        rows = of_vectors + image * n_queries * DIM + query * DIM
        pooled = vectors + image * n_queries * DIM + query * DIM
        by_token = image * n_queries * n_tokens + query * n_tokens

        along = tl.zeros([BLOCK_Q], tl.float32)  # v' · v + a' · a
        largest_row = tl.zeros([BLOCK_Q], tl.float32)
        for start in range(0, DIM, SLICE):
            row = _channels(rows, has_query, start, DIM, SLICE)
            along += tl.sum(row * _channels(pooled, has_query, start, DIM, SLICE), 0)
            largest_row = tl.maximum(largest_row, tl.max(tl.abs(row), 0))
        if OF_WEIGHTS:
            for first in range(0, n_tokens, BLOCK_T):
                at = first + tl.arange(0, BLOCK_T)
                mask = (at < n_tokens)[:, None] & has_query[None, :]
                place = by_token[None, :] + at[:, None]
                along += tl.sum(tl.load(weights + place, mask, 0.0) * tl.load(of_weights + place, mask, 0.0), 0)
        scale = tl.full([BLOCK_Q], 1.0, tl.float32)
        inverse = scale
        if tokens.dtype.element_ty == tl.float16:
            scale, inverse = _scale(largest_row)

        for first in range(0, n_tokens, BLOCK_T):
            at = first + tl.arange(0, BLOCK_T)
            mask = (at < n_tokens)[:, None] & has_query[None, :]
            place = by_token[None, :] + at[:, None]
            s = (
                _scores(x, x_scales, at, n_tokens, rows, has_query, scale, DIM, GROUP, SLICE) * inverse[None, :]
                - along[None, :]
            )
            if OF_WEIGHTS:
                s += tl.load(of_weights + place, mask, 0.0)
            s *= tl.load(weights + place, mask, 0.0)
            if OF_SCORES:
                tl.store(of_scores + place, s, mask)
            shrunk = tl.full([BLOCK_Q], 1.0, tl.float32)
            if tokens.dtype.element_ty == tl.float16:  # sums are kept multiplied by the scale of the largest s' so far
                _, inverse_before = _scale(largest)
                largest = tl.maximum(largest, tl.max(tl.abs(s), 0))
                scale_of_s, _ = _scale(largest)
                s *= scale_of_s[None, :]
                shrunk = inverse_before * scale_of_s
            sums = _add(sums, shrunk, s, x, x_scales, at, n_tokens, DIM, GROUP, SLICE)
    factor = tl.full([BLOCK_Q], 1.0, tl.float32)
    if tokens.dtype.element_ty == tl.float16:
        _, factor = _scale(largest)
    _store(of_queries + number * n_queries * DIM + query * DIM, has_query, sums, factor, DIM, SLICE)


@triton.jit
def _scale(largest):
    """The power of two that brings the largest magnitude to 2^14 … 2^15, below the end of float16; and its inverse."""
    exponent = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 15), 254)
    scale = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _dot(x, a, total):
    """total + x a, with x as tokens are stored and `a` in float32."""
    if x.dtype == tl.float32:
        return tl.dot(x, a, total, input_precision="tf32x3")
    high = a.to(x.dtype)
    rest = a - high.to(tl.float32)
    low = rest.to(x.dtype)
    total = tl.dot(x, low, total)
    if x.dtype == tl.bfloat16:
        total = tl.dot(x, (rest - low.to(tl.float32)).to(x.dtype), total)
    return tl.dot(x, high, total)


@triton.jit
def _channels(rows, has_row, start, DIM: tl.constexpr, SLICE: tl.constexpr):
    """[SLICE, BLOCK_Q]: some channels of rows, given by pointers to their first channel."""
    channels = start + tl.arange(0, SLICE)
    return tl.load(rows[None, :] + channels[:, None], (channels < DIM)[:, None] & has_row[None, :], 0.0)


@triton.jit
def _row_length(tokens, DIM: tl.constexpr):
    """Stored numbers of a token: of int4, a byte holds two channels."""
    return DIM // 2 if tokens.dtype.element_ty == tl.uint8 else DIM


@triton.jit
def _tile(tokens, at, n_tokens, start, DIM: tl.constexpr, SLICE: tl.constexpr):
    """[BLOCK_T, SLICE]: some channels of some tokens; of int8 and int4 what is stored, which bfloat16 holds exactly."""
    channels = start + tl.arange(0, SLICE)
    has = (at < n_tokens)[:, None] & (channels < DIM)[None, :]
    if tokens.dtype.element_ty == tl.uint8:  # int4: q + 8 of an even channel in the lower half of a byte
        both = tl.load(tokens + at[:, None] * (DIM // 2) + (channels // 2)[None, :], has, 0x88)
        x = ((both >> (channels % 2 * 4)[None, :].to(tl.uint8)) & 15).to(tl.float32) - 8.0
    else:
        x = tl.load(tokens + at[:, None] * DIM + channels[None, :], has, 0)
    if tokens.dtype.element_ty == tl.int8 or tokens.dtype.element_ty == tl.uint8:
        x = x.to(tl.float32).to(tl.bfloat16)
    return x


@triton.jit
def _scaled(values, tokens, scales, at, n_tokens, start, DIM: tl.constexpr, GROUP: tl.constexpr):
    """[BLOCK_T, …], multiplied by the scales that tokens of int8 or int4 have at these channels."""
    if tokens.dtype.element_ty == tl.int8 or tokens.dtype.element_ty == tl.uint8:
        scale = tl.load(scales + at * (DIM // GROUP) + start // GROUP, at < n_tokens, 0)
        values = values * scale.to(tl.float32)[:, None]
    return values


@triton.jit
def _scores(
    tokens, scales, at, n_tokens, rows, has_row, scale, DIM: tl.constexpr, GROUP: tl.constexpr, SLICE: tl.constexpr
):  # fmt: skip
    """[BLOCK_T, BLOCK_Q]: products of tokens and rows · scale."""
    total = tl.zeros([at.shape[0], scale.shape[0]], tl.float32)
    for start in range(0, DIM, SLICE):
        x = _tile(tokens, at, n_tokens, start, DIM, SLICE)
        row = _channels(rows, has_row, start, DIM, SLICE) * scale[None, :]
        if tokens.dtype.element_ty == tl.int8 or tokens.dtype.element_ty == tl.uint8:
            products = _dot(x, row, tl.zeros([at.shape[0], scale.shape[0]], tl.float32))
            total += _scaled(products, tokens, scales, at, n_tokens, start, DIM, GROUP)
        else:
            total = _dot(x, row, total)
    return total


@triton.jit
def _zeros(DIM: tl.constexpr, SLICE: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Sums of no tokens."""
    sums = ()
    for _ in tl.static_range(0, DIM, SLICE):
        sums += (tl.zeros([SLICE, BLOCK_Q], tl.float32),)  # type: ignore[assignment]
    return sums


@triton.jit
def _add(
    sums, shrunk, a, tokens, scales, at, n_tokens, DIM: tl.constexpr, GROUP: tl.constexpr, SLICE: tl.constexpr
):  # fmt: skip
    """sums · shrunk + tokensᵀ a."""
    added = ()
    for i in tl.static_range(len(sums)):
        x = _tile(tokens, at, n_tokens, i * SLICE, DIM, SLICE)
        by_token = _scaled(a, tokens, scales, at, n_tokens, i * SLICE, DIM, GROUP)
        added += (_dot(tl.trans(x), by_token, sums[i] * shrunk[None, :]),)  # type: ignore[assignment]
    return added


@triton.jit
def _store(rows, has_row, sums, factor, DIM: tl.constexpr, SLICE: tl.constexpr):
    """Rows, given by pointers to their first channel, become sums · factor."""
    for i in tl.static_range(len(sums)):
        channels = i * SLICE + tl.arange(0, SLICE)
        mask = (channels < DIM)[:, None] & has_row[None, :]
        tl.store(rows[None, :] + channels[:, None], sums[i] * factor[None, :], mask)
