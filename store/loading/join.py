"""Two feature sets in step: which row of one belongs to which row of the other."""

import numpy as np

from store.errors import StoreError
from store.format.reader import FeatureStore


def join(first: FeatureStore, second: FeatureStore) -> np.ndarray:
    """For each image of `first`, its row in `second`, [N] int64; -1 where `second` lacks it or could not read it.

    Images are the same where their ids are. Give it to `Loader(joined={name: rows})` with an array of `second`, and leave out
    rows that are -1.

    Raises:
        StoreError: they have no image in common, or the same ids but different labels.
    """
    if first.spec.data == second.spec.data:
        rows = np.arange(len(first))
    else:
        row_of = {id_: row for row, id_ in enumerate(second.ids)}
        rows = np.array([row_of.get(id_, -1) for id_ in first.ids], np.int64)
    shared = np.flatnonzero(rows >= 0)
    if not len(shared):
        raise StoreError(
            f"{first.where} and {second.where} have no image in common: the first has ids like {first.ids[0]!r}, "
            f"the second like {second.ids[0]!r}; extract both from the same images"
        )
    labels, second_labels = first.labels[shared], second.labels[rows[shared]]
    if labels.shape[1:] != second_labels.shape[1:]:
        raise StoreError(f"{first.where} and {second.where} have different classes; are these the same images?")
    differ = shared[(labels != second_labels).reshape(len(shared), -1).any(1)]
    if len(differ):
        image = differ[0]
        raise StoreError(
            f"image {first.ids[image]!r} has label {first.labels[image]} in {first.where} but {second.labels[rows[image]]} in "
            f"{second.where}; are these the same images?"
        )
    rows[shared[~second.valid[rows[shared]]]] = -1
    return rows
