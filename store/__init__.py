"""The contract between the two stages: what a feature set is, how it is written, read and checked."""

from typing import TYPE_CHECKING, Any

from store.array import ArrayReader
from store.errors import BeyondClsError, StoreError
from store.join import join
from store.layout import ArrayLayout
from store.reader import FeatureStore
from store.select import read_ids, rows_of_ids
from store.spec import FeatureSpec
from store.verify import verify

if TYPE_CHECKING:
    from store.loader import Loader
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
    "join",
    "open_store",
    "read_ids",
    "rows_of_ids",
    "verify",
]


def __getattr__(name: str) -> Any:
    # Reading needs neither torch nor zarr, and they take seconds to import.
    if name == "Loader":
        from store.loader import Loader

        return Loader
    if name == "FeatureWriter":
        from store.writer import FeatureWriter

        return FeatureWriter
    raise AttributeError(f"module 'store' has no attribute {name!r}; it has: {', '.join(__all__)}")
