"""Which tokens an aggregator weights together."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from probe.aggregators.aggregator import Features
from probe.aggregators.options import choice

BAGS = {"patch": ("patch",), "all": ("cls", "patch")}


def kinds_in_bag(tokens: str) -> tuple[str, ...]:
    """Kinds of features of the bag "patch", or "all" for [cls] and patches (never registers).

    Raises:
        BeyondClsError: another name.
    """
    return BAGS[choice("bag of tokens", tokens, BAGS)]


def bag(features: Features, kinds: Iterable[str]) -> Float[Tensor, "B N D"]:
    """Tokens of several kinds, concatenated; a single kind is returned as it is."""
    tokens = [features[kind] for kind in kinds]
    tokens = [t if t.ndim == 3 else t[:, None] for t in tokens]
    return tokens[0] if len(tokens) == 1 else torch.cat(tokens, 1)
