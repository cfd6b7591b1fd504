"""How good is a frozen ViT's representation, and why.

The public names, imported when they are first used: probing needs no timm, extraction no scikit-learn.

    store = beyondcls.open_store("features/quickstart-mae-test")
    patch = store.tokens("patch").rows([0, 1, 2])            # [3, 64, 192] float16
    head = beyondcls.load_probe("probes/quickstart-mae/abmilp/trained/seed0")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extract.datasets import open_images
    from extract.encoders import ENCODERS, load_encoder
    from extract.run import extract
    from probe.aggregators import AGGREGATORS, AbMILP, Average, Cls
    from probe.run import probe
    from probe.saved import load_probe
    from probe.train import Recipe
    from store import BeyondClsError, FeatureStore, Loader, open_store, read_ids, rows_of_ids

_HOME = {
    "AGGREGATORS": "probe.aggregators",
    "AbMILP": "probe.aggregators",
    "Average": "probe.aggregators",
    "BeyondClsError": "store",
    "Cls": "probe.aggregators",
    "ENCODERS": "extract.encoders",
    "FeatureStore": "store",
    "Loader": "store",
    "Recipe": "probe.train",
    "extract": "extract.run",
    "load_encoder": "extract.encoders",
    "load_probe": "probe.saved",
    "open_images": "extract.datasets",
    "open_store": "store",
    "probe": "probe.run",
    "read_ids": "store",
    "rows_of_ids": "store",
}

__all__ = [
    "AGGREGATORS",
    "ENCODERS",
    "AbMILP",
    "Average",
    "BeyondClsError",
    "Cls",
    "FeatureStore",
    "Loader",
    "Recipe",
    "extract",
    "load_encoder",
    "load_probe",
    "open_images",
    "open_store",
    "probe",
    "read_ids",
    "rows_of_ids",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'beyondcls' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
