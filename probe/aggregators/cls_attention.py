"""The average [cls] attention map."""

from probe.aggregators.stored_attention import StoredAttention


class ClsAttention(StoredAttention):
    """The [cls] token's attention in the probed block, renormalised over the patches: the mean over heads, or one of them.

    No parameters.

    Source: Tables 4 and 6, "average [cls] token attention" (`attn-mn` in the official code); with of="joined" and DINO's maps
    on MAE's tokens, "average DINO [cls] token attention" (`dino`, which is not renormalised there).

    Args:
        of, head, without: see `StoredAttention`.
    """

    variants = ({}, {"of": "joined", "top_k": 3}, {"head": 3}, {"without": 1})
