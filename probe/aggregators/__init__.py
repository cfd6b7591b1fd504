"""Aggregators by name. To add one: a class in its own file here, and its line in AGGREGATORS."""

import inspect
from typing import Any

from probe.aggregators.abmilp import AbMILP, SelfAttentionAbMILP
from probe.aggregators.aggregator import Aggregator, Features, Parameters, Pooled, Weighted, whole_number
from probe.aggregators.cross_attention import AttentiveProbing, EfficientProbing, SimPool, VJEPAPooler
from probe.aggregators.custom import custom_aggregator
from probe.aggregators.plain import Average, Central, Cls, ClsAverage, EncoderPooling, Max
from probe.aggregators.stored_attention import CentralAttention, ClsAttention, LowestEntropyHead
from probe.aggregators.unsupervised import PCA, KMeans, Norm
from probe.aggregators.vjepa2 import VJEPA2Pooler
from store import BeyondClsError
from store.errors import unknown
from store.plugins import Registry
from store.user_code import custom_digest, is_custom


def _check_aggregator(kind: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Aggregator)):
        raise TypeError(f"it is {kind!r}, expected a class that is derived from beyondcls.Aggregator")


AGGREGATORS = Registry[type[Aggregator]]("aggregators", _check_aggregator) | {
    "cls": Cls,
    "average": Average,
    "cls-average": ClsAverage,
    "encoder-pooling": EncoderPooling,
    "max": Max,
    "central": Central,
    "abmilp": AbMILP,
    "sa-abmilp": SelfAttentionAbMILP,
    "ap": AttentiveProbing,
    "ep": EfficientProbing,
    "simpool": SimPool,
    "v-jepa": VJEPAPooler,
    "v-jepa-2": VJEPA2Pooler,
    "cls-attention": ClsAttention,
    "lowest-entropy-head": LowestEntropyHead,
    "central-attention": CentralAttention,
    "norm": Norm,
    "pca": PCA,
    "k-means": KMeans,
}


def code_of(name: str) -> str | None:
    """Digest of the code of an aggregator that is not of this program; None for one that is.

    Raises:
        BeyondClsError: the file of a custom one is missing.
    """
    if is_custom(name):
        return custom_digest(name)
    plugin = AGGREGATORS.plugin(name)
    return None if plugin is None else plugin.digest()


def is_foreign(name: str) -> bool:
    """Whether an aggregator is not of this program: in a file of the user's, or in another package."""
    return is_custom(name) or AGGREGATORS.plugin(name) is not None


def make_aggregator(
    name: str, dim: int, n_patches: int | None = None, *, top_k: int | None = None, **options: Any
) -> Aggregator:
    """An aggregator for tokens of width `dim`.

    Args:
        name: in AGGREGATORS, entries of other packages included; or FILE.py:CLASS, which runs that file.
        n_patches: T, for those that take it.
        top_k: K, for any that weights tokens: of each query the K largest weights count, made to sum to 1 (the first of equal
            ones), before anything is projected; trained like this, or set for one that was trained without.
        options: of the aggregator.

    Raises:
        BeyondClsError: unknown name or option (with the nearest one), or a value that it does not take.
    """
    if name not in AGGREGATORS and not is_custom(name):
        raise BeyondClsError(unknown("aggregator", name, AGGREGATORS, "A custom one is named FILE.py:CLASS"))
    kind = custom_aggregator(name) if is_custom(name) else AGGREGATORS[name]
    takes = dict(inspect.signature(kind).parameters)
    takes.pop("dim", None)
    for option in options:
        if option not in takes:
            raise BeyondClsError(unknown(f"option of aggregator {name!r}", option, {*takes, "top_k"}))
    if "n_patches" in takes:
        if n_patches is None and takes["n_patches"].default is inspect.Parameter.empty:
            raise BeyondClsError(f"n_patches is unknown, expected the number of patches: aggregator {name!r} needs it")
        options["n_patches"] = n_patches
    try:
        aggregator = kind(dim, **options)
    except TypeError as error:
        raise BeyondClsError(f"aggregator {name!r} was given {options}: {error}; see help({kind.__name__})") from error
    if top_k is None:
        return aggregator
    if not isinstance(aggregator, Weighted):
        raise BeyondClsError(
            f"top_k is {top_k}, but {name!r} has no weights to select by, expected one of: "
            + ", ".join(sorted(n for n, k in AGGREGATORS.own.items() if issubclass(k, Weighted)))
        )
    aggregator.top_k = whole_number("top_k", top_k)
    return aggregator


__all__ = [
    "AGGREGATORS",
    "AbMILP",
    "Aggregator",
    "Average",
    "Cls",
    "Features",
    "Parameters",
    "Pooled",
    "Weighted",
    "code_of",
    "is_custom",
    "is_foreign",
    "make_aggregator",
]
