"""`extract.run` in one call, whatever is to be done with the set that is there."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from extract.datasets import ImageSet
from extract.encoders import Encoder
from extract.requests import Request
from extract.run import create, extend, repair, update
from extract.writing import Settings
from store import FeatureStore

VERBS = {"refuse": create, "update": update, "extend": extend, "repair": repair}


def extract(encoder: Encoder, images: ImageSet, out: Path, *, existing: str = "refuse", **options: Any) -> FeatureStore | None:
    """The set; `existing`: what to do with one that is there; `options`: of the verb, of `Request.resolve`, of `Settings`."""
    of_verb = {name: options.pop(name) for name in ("source", "older", "shared") if name in options}
    settings = Settings(**{f.name: options.pop(f.name) for f in fields(Settings) if f.name in options})
    return VERBS[existing](Request.resolve(encoder, images, **options), out, settings, **of_verb)
