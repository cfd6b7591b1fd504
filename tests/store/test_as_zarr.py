"""A feature set handed to zarr-python."""

from pathlib import Path

import numpy as np
import zarr

from store import FeatureStore


def test_same_values_and_read_only(written: Path) -> None:
    store = FeatureStore.open(written)
    group = store.zarr()
    assert isinstance(group, zarr.Group)
    for name, array in store.arrays.items():
        assert np.asarray(group[name]).tobytes() == array.stored(np.arange(array.shape[0])).tobytes()
    assert group.read_only
