"""What files of earlier versions lack, from the registries of this version.

These are imported by name, which the digest of the report's code (pipelines/code) does not follow: a new
entry of a registry cannot occur in an older file, so it does not change how one is read.
"""

from importlib import import_module
from typing import Any

from store.errors import BeyondClsError
from store.format.pretraining import UNKNOWN, Pretraining


def pretraining_of(encoder: str) -> Pretraining:
    """How the encoder of this name was trained; UNKNOWN for a custom name, or if timm is not installed."""
    try:
        known: Pretraining = import_module("extract.encoders").known_pretraining(encoder)
    except ImportError:
        return UNKNOWN
    return known


def declared(statistic: str) -> tuple[str, str]:
    """Title and unit of an attention statistic; its name and no unit if it was removed, or if torch is not installed."""
    try:
        attention: Any = import_module("extract.attention")
    except ImportError:
        return statistic, ""
    try:
        facts = attention.facts_of(statistic)
    except (KeyError, BeyondClsError):
        return statistic, ""
    return facts.title, facts.unit
