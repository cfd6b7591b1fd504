"""Two feature sets in step: which row of one belongs to which row of the other."""

import numpy as np

from store.errors import StoreError
from store.format.reader import FeatureStore


def join(one: FeatureStore, other: FeatureStore) -> np.ndarray:
    """For each image of `one`, the row of the same image in `other`, [N] int64; -1 where `other` lacks it or could not read it.

    Images are the same where their ids are. Give it to `Loader(joined={name: rows})` with an array of `other`, and leave out
    rows that are -1.

    Raises:
        StoreError: they have no image in common, or the same ids but other labels.
    """
    if one.spec.data == other.spec.data:
        rows = np.arange(len(one))
    else:
        row_of = {id_: row for row, id_ in enumerate(other.ids)}
        rows = np.array([row_of.get(id_, -1) for id_ in one.ids], np.int64)
    shared = np.flatnonzero(rows >= 0)
    if not len(shared):
        raise StoreError(
            f"{one.where} and {other.where} have no image in common: the first has ids like {one.ids[0]!r}, "
            f"the second like {other.ids[0]!r}; extract both from the same images"
        )
    ours, theirs = one.labels[shared], other.labels[rows[shared]]
    if ours.shape[1:] != theirs.shape[1:]:
        raise StoreError(f"{one.where} and {other.where} have other classes; are these the same images?")
    differ = shared[(ours != theirs).reshape(len(shared), -1).any(1)]
    if len(differ):
        image = differ[0]
        raise StoreError(
            f"image {one.ids[image]!r} has label {one.labels[image]} in {one.where} but {other.labels[rows[image]]} in "
            f"{other.where}; are these the same images?"
        )
    rows[shared[~other.valid[rows[shared]]]] = -1
    return rows
