"""How much attention adds to [cls]."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.declared import declares, infinity
from extract.attention.layout import TokenLayout


@declares(
    "Norm of what attention adds to [cls], relative to [cls]",
    "ratio of norms, without bound",
    highest=infinity,
    of_cls=True,
    of_norms=True,
)
def cls_norm_ratio(residual: Float[Tensor, "B N D"], branch: Float[Tensor, "B N D"], layout: TokenLayout) -> Float[Tensor, "B"]:
    """|y| / |x| of [cls], with x what enters the block and y what its attention puts out; 0…infinity.

    y is taken before LayerScale. Source: `cls_magnitude` in the official code (which adds 1e-6 below).
    """
    return branch[:, 0].norm(dim=-1) / residual[:, 0].norm(dim=-1)
