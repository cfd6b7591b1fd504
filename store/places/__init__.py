"""Where feature sets are: folders and object stores that are read and written alike, and a disk cache for the latter."""

import os
from pathlib import Path

from store.places.local import LocalFolder
from store.places.object_store import ObjectStore
from store.places.place import Place

# In which several processes, also of several machines, write at the same time. No lock is needed for that.
SharedPlace = LocalFolder | ObjectStore

__all__ = ["LocalFolder", "Place", "SharedPlace", "is_remote", "place_at"]


def is_remote(address: str) -> bool:
    """Whether an address is outside this machine's file systems."""
    return ("://" in address and not address.startswith("file://")) or address.startswith("pipe:")


def place_at(address: str | os.PathLike[str]) -> SharedPlace:
    """A folder of this machine, or a place in an object store, as the address says."""
    text = os.fspath(address)
    return ObjectStore(text) if is_remote(text) else LocalFolder(Path(text.removeprefix("file://")))
