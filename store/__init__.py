"""The contract between the two stages: what a feature set is, how it is written, read and checked."""

from store.array import ArrayReader
from store.errors import BeyondClsError, StoreError
from store.layout import ArrayLayout
from store.loader import Loader
from store.reader import FeatureStore
from store.spec import FeatureSpec
from store.verify import verify
from store.writer import FeatureWriter

open_store = FeatureStore.open

__all__ = [
    "ArrayLayout",
    "ArrayReader",
    "BeyondClsError",
    "FeatureSpec",
    "FeatureStore",
    "FeatureWriter",
    "Loader",
    "StoreError",
    "open_store",
    "verify",
]
