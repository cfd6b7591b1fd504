"""The contract between the two stages: what a feature set is, how it is written, read and checked."""

import os
from typing import TYPE_CHECKING, Any

from store.errors import BeyondClsError, StoreError
from store.format.array import ArrayReader
from store.format.layout import ArrayLayout
from store.format.reader import FeatureStore, verify
from store.format.spec import FeatureSpec
from store.loading.order import join, read_ids, rows_of_ids

if TYPE_CHECKING:
    from store.loading.loader import Loader
    from store.writing.writer import FeatureWriter

open_store = FeatureStore.open

# Before torch is imported: threads that spin while they wait take the cores from other processes. What a user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

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
        from store.loading.loader import Loader

        return Loader
    if name == "FeatureWriter":
        from store.writing.writer import FeatureWriter

        return FeatureWriter
    raise AttributeError(f"module 'store' has no attribute {name!r}; it has: {', '.join(__all__)}")
