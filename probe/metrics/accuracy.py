"""Top-k accuracy."""

from jaxtyping import Float, Int
from torch import Tensor


def top_k_accuracy(logits: Float[Tensor, "B K"], labels: Int[Tensor, "B"], k: int = 1) -> float:
    """Percent of images whose class is among the k highest logits, 0...100; NaN logits count as wrong.

    With no more than k classes it is 100 by definition.
    """
    finite = logits.isfinite().all(-1)
    top = logits.nan_to_num().topk(min(k, logits.shape[-1]), dim=-1).indices
    return 100 * ((top == labels[:, None]).any(-1) & finite).double().mean().item()
