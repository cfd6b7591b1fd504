"""Softmax pooling in Triton: one program pools an image, or some images one after the other, by a block of queries.

Tokens come in tiles of BLOCK_T. A tile is read from the GPU's memory for the scores, in slices of channels, and once more for
the sums, soon enough to be in the L2 cache; the sums of all channels stay in registers, a tuple of [SLICE, BLOCK_Q]. Tokens and
channels come first, queries last: tensor cores want 64 rows or more, and there may be few queries. Blocks of queries of the
same images run side by side, so that all but one find the tokens in the cache too.

Products are nearly as exact as float32's own. Tokens of 16 bits enter the tensor cores as they are, and what they are
multiplied with as a sum of numbers of that dtype: three of bfloat16 (24 bits), or two of float16 (22 bits), whose range
suffices because each query is first multiplied by a power of two. Tokens in float32: products in TF32 of both numbers' two
parts ("tf32x3", 21 bits). Sums are in float32. There are no atomics: the same inputs give the same bits.
"""

# mypy: allow-untyped-defs

import triton
import triton.language as tl

SHIFT = tl.constexpr(16384.0)  # 2^14: what is at most 1 keeps its 22 bits in two float16 after this


@triton.jit
def pool(
    tokens,
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
    SLICE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Vectors [B, Q, D] and weights [B, Q, T] of one image and block of queries.

    `…_by_image`, `…_by_query`, `…_by_token` are strides, 0 of what is shared.
    """
    n_blocks = tl.cdiv(n_queries, BLOCK_Q)
    image = (tl.program_id(0) // n_blocks).to(tl.int64)
    query = tl.program_id(0) % n_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    has_query = query < n_queries
    tokens += image * n_tokens * DIM
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
        s = _scores(tokens, at, n_tokens, rows, has_query, scale, DIM, SLICE) * inverse[None, :]
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
        sums = _add(sums, shrunk, p, tokens, at, n_tokens, DIM, SLICE)
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
        x = tokens + image * n_tokens * DIM
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
            s = _scores(x, at, n_tokens, rows, has_query, scale, DIM, SLICE) * inverse[None, :] - along[None, :]
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
            sums = _add(sums, shrunk, s, x, at, n_tokens, DIM, SLICE)
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
def _tile(tokens, at, n_tokens, start, DIM: tl.constexpr, SLICE: tl.constexpr):
    """[BLOCK_T, SLICE]: some channels of some tokens."""
    channels = start + tl.arange(0, SLICE)
    return tl.load(tokens + at[:, None] * DIM + channels[None, :], (at < n_tokens)[:, None] & (channels < DIM)[None, :], 0.0)


@triton.jit
def _scores(tokens, at, n_tokens, rows, has_row, scale, DIM: tl.constexpr, SLICE: tl.constexpr):
    """[BLOCK_T, BLOCK_Q]: products of tokens and rows · scale."""
    total = tl.zeros([at.shape[0], scale.shape[0]], tl.float32)
    for start in range(0, DIM, SLICE):
        x = _tile(tokens, at, n_tokens, start, DIM, SLICE)
        total = _dot(x, _channels(rows, has_row, start, DIM, SLICE) * scale[None, :], total)
    return total


@triton.jit
def _zeros(DIM: tl.constexpr, SLICE: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Sums of no tokens."""
    sums = ()
    for _ in tl.static_range(0, DIM, SLICE):
        sums += (tl.zeros([SLICE, BLOCK_Q], tl.float32),)  # type: ignore[assignment]
    return sums


@triton.jit
def _add(sums, shrunk, a, tokens, at, n_tokens, DIM: tl.constexpr, SLICE: tl.constexpr):
    """sums · shrunk + tokensᵀ a."""
    added = ()
    for i in tl.static_range(len(sums)):
        x = _tile(tokens, at, n_tokens, i * SLICE, DIM, SLICE)
        added += (_dot(tl.trans(x), a, sums[i] * shrunk[None, :]),)  # type: ignore[assignment]
    return added


@triton.jit
def _store(rows, has_row, sums, factor, DIM: tl.constexpr, SLICE: tl.constexpr):
    """Rows, given by pointers to their first channel, become sums · factor."""
    for i in tl.static_range(len(sums)):
        channels = i * SLICE + tl.arange(0, SLICE)
        mask = (channels < DIM)[:, None] & has_row[None, :]
        tl.store(rows[None, :] + channels[:, None], sums[i] * factor[None, :], mask)
