"""The statistics of the paper and of its official code, in whose formulas 1e-6 is added to denominators; here nothing is.

Of an `Attention`, [B, H]; or, [B], of what enters a block and what its attention adds to it, before LayerScale. Registers count
where attention is a share of all that a token gives, and nowhere else.
"""

import math

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention, TokenLayout
from extract.attention.declared import declares, infinity


def one(n: int, t: int) -> float:
    """A share of attention is at most 1."""
    return 1


def per_token(n: int, t: int) -> float:
    return 1 / n


def per_patch(n: int, t: int) -> float:
    return 1 / t


def of_patches(n: int, t: int) -> float:
    """Entropy of a uniform row over the patches, nats."""
    return math.log(t)


@declares("Attention of [cls] to itself", "share of attention, 0–1", one, per_token, of_cls=True, of_all_tokens=True)
def cls_self(attention: Attention) -> Float[Tensor, "B H"]:
    """a[cls, cls], the share of its attention that [cls] spends on itself; 0…1. Uniform attention: 1 / N.

    Registers count among what it could attend to. Source: Fig. 3; `cls_cls_attention` in the official code.
    """
    return attention.to_itself[..., 0] / attention.z[..., 0]


@declares("Entropy of the attention of [cls] to the patches", "entropy, nats", of_patches, of_patches, of_cls=True)
def cls_patch_entropy(attention: Attention) -> Float[Tensor, "B H"]:
    """Entropy (Eq. 5) of the [cls] row over the T patches, nats, 0…ln T. Uniform attention: ln T.

    Source: Fig. 4; `cls_pos_entropy` in the official code.
    """
    return attention.patch_entropy[..., 0]


@declares("Attention of patches to themselves", "share of attention to patches, 0–1", one, per_patch)
def patch_self(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches i of a[i, i] / sum over patches j of a[i, j]; 0…1. Uniform attention: 1 / T.

    Source: Fig. 5; `pos_self_attention_adj_for_cls` in the official code.
    """
    return (attention.to_itself / attention.to_patches)[..., attention.patches].mean(-1)


@declares("Entropy of the attention of patches to patches", "entropy, nats", of_patches, of_patches)
def patch_patch_entropy(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches of the entropy (Eq. 5) of their row over the T patches, nats, 0…ln T. Uniform attention: ln T.

    Source: Fig. 6; `pos_pos_entropy` in the official code.
    """
    return attention.patch_entropy[..., attention.patches].mean(-1)


@declares("Attention of [cls] to itself, relative to the patches", "ratio, without bound", infinity, per_patch, of_cls=True)
def cls_self_adjusted(attention: Attention) -> Float[Tensor, "B H"]:
    """a[cls, cls] / sum over patches j of a[cls, j]; 0…infinity. Uniform attention: 1 / T.

    Source: `cls_cls_attention_adj_for_cls` in the official code.
    """
    return attention.to_itself[..., 0] / attention.to_patches[..., 0]


@declares("Attention of patches to themselves, of all tokens", "share of attention, 0–1", one, per_token, of_all_tokens=True)
def patch_self_raw(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches i of a[i, i]; 0…1. Uniform attention: 1 / N.

    What patches give to [cls] and registers lowers it. Source: `pos_self_attention` in the official code.
    """
    return (attention.to_itself / attention.z)[..., attention.patches].mean(-1)


@declares(
    "Attention of [cls] to a patch, mean over patches",
    "share of attention, 0–1 / T",
    per_patch,
    per_token,
    of_cls=True,
    of_all_tokens=True,
)
def cls_to_patches(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches j of a[cls, j]; 0…1 / T. Uniform attention: 1 / N.

    What [cls] gives to registers lowers it. Source: `cls_pos_attention` in the official code.
    """
    n_patches = attention.z.shape[-1] - attention.layout.n_prefix
    return attention.to_patches[..., 0] / attention.z[..., 0] / n_patches


@declares("Attention of patches to [cls]", "share of attention, 0–1", one, per_token, of_cls=True, of_all_tokens=True)
def patches_to_cls(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches i of a[i, cls]; 0…1. Uniform attention: 1 / N.

    What patches give to registers lowers it. Source: `pos_cls_attention` in the official code.
    """
    return (attention.to_cls / attention.z)[..., attention.patches].mean(-1)


@declares(
    "Norm of what attention adds to [cls], relative to [cls]",
    "ratio of norms, without bound",
    infinity,
    of_cls=True,
    of_norms=True,
)
def cls_norm_ratio(residual: Float[Tensor, "B N D"], branch: Float[Tensor, "B N D"], layout: TokenLayout) -> Float[Tensor, "B"]:
    """|y| / |x| of [cls], with x what enters the block and y what its attention puts out; 0…infinity.

    Source: `cls_magnitude` in the official code.
    """
    return branch[:, 0].norm(dim=-1) / residual[:, 0].norm(dim=-1)


@declares("Norm of what attention adds to patches, relative to them", "ratio of norms, without bound", infinity, of_norms=True)
def patch_norm_ratio(
    residual: Float[Tensor, "B N D"], branch: Float[Tensor, "B N D"], layout: TokenLayout
) -> Float[Tensor, "B"]:
    """Mean over patches of |y| / |x|, with x what enters the block and y what its attention puts out; 0…infinity.

    Source: `pos_magnitude` in the official code.
    """
    patches = slice(layout.n_prefix, None)
    return (branch[:, patches].norm(dim=-1) / residual[:, patches].norm(dim=-1)).mean(-1)
