"""Shannon entropy of rows of attention, over patches alone (Eq. 5)."""

import torch
from jaxtyping import Float
from torch import Tensor


def row_entropy(rows: Float[Tensor, "... T"]) -> Float[Tensor, "..."]:
    """Entropy in nats of each row, renormalised to sum to 1 (Eq. 5); 0...ln T.

    Exact: 0 ln 0 counts as 0. (The official code adds 1e-6 in the denominator and in the logarithm.) A row without any mass
    on patches has no distribution; it gives NaN, which the store refuses, rather than a number.
    """
    p = rows / rows.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1)
