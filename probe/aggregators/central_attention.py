"""The average attention map of the central patch."""

from probe.aggregators.stored_attention import StoredAttention


class CentralAttention(StoredAttention):
    """The central patch's attention in the probed block, renormalised over the patches: the mean over heads, or one of them.

    No parameters.

    The central patch of an even grid is the one right below the middle, as in the stored "attention/centre".

    Source: Tables 4 and 6, "central patch token attention" (`ca1` in the official code, there of the patch above and left of
    the middle, and divided by T).

    Args:
        of, head: see `StoredAttention`.
    """

    row = "attention/centre"
    variants = ({}, {"of": "joined", "top_k": 16, "head": 0})
