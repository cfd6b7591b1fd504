"""Attention of the central patch to [cls]."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention, centre
from extract.attention.declared import declares


@declares(
    "Attention of the central patch to [cls]",
    "share of attention, 0–1",
    highest=lambda n, t: 1,
    uniform=lambda n, t: 1 / n,
    of_cls=True,
    of_all_tokens=True,
    spatial=True,
)
def centre_to_cls(attention: Attention) -> Float[Tensor, "B H"]:
    """a[centre, cls]; 0…1. Uniform attention: 1 / N."""
    at = attention.layout.n_prefix + centre(attention.z.shape[-1] - attention.layout.n_prefix)
    return attention.to_cls[..., at] / attention.z[..., at]
