"""Parts of kernels with a mistake, for tests that have to see it."""

import triton
import triton.language as tl  # noqa: F401  # the interpreter asks for it


@triton.jit
def without_growth(products, to_patches, growth, shrink):
    """The sum of e · (x - m), rescaled as if x - m stayed the same when m grows."""
    return shrink * products


@triton.jit
def unmasked(logits, is_key, HAS_BIAS):
    """Keys beyond the last stay, with a logit of 0."""
    return logits
