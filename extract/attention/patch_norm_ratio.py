"""How much attention adds to patches."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.declared import declares, infinity
from extract.attention.layout import TokenLayout


@declares(
    "Norm of what attention adds to patches, relative to them", "ratio of norms, without bound", highest=infinity, of_norms=True
)
def patch_norm_ratio(
    residual: Float[Tensor, "B N D"], branch: Float[Tensor, "B N D"], layout: TokenLayout
) -> Float[Tensor, "B"]:
    """Mean over patches of |y| / |x|, with x what enters the block and y what its attention puts out; 0…infinity.

    y is taken before LayerScale; registers do not count. Source: `pos_magnitude` in the official code (which adds 1e-6 below).
    """
    patches = slice(layout.n_prefix, None)
    return (branch[:, patches].norm(dim=-1) / residual[:, patches].norm(dim=-1)).mean(-1)
