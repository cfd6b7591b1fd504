"""What files of earlier versions do not say, as the registries of this one have it.

These are imported by name, which the digest of the report's code (pipelines/code) does not follow: an entry that is added to a
registry is in no older file, so it does not change what is read of one.
"""

from importlib import import_module
from typing import Any

from store.format.pretraining import UNKNOWN, Pretraining


def pretraining_of(encoder: str) -> Pretraining:
    """How the encoder of a name was trained; not known of a name of one's own, nor where timm is not installed."""
    try:
        found: Pretraining = import_module("extract.encoders").known_pretraining(encoder)
    except ImportError:
        return UNKNOWN
    return found


def declared(statistic: str) -> tuple[str, str]:
    """Title and unit of an attention statistic; its name, and no unit, of one that is gone, or where torch is not installed."""
    try:
        attention: Any = import_module("extract.attention")
    except ImportError:
        return statistic, ""
    of = (attention.STATISTICS | attention.PER_BLOCK).get(statistic)
    return (statistic, "") if of is None else (of.declared.title, of.declared.unit)
