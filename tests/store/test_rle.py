"""Run lengths of a label map, in one pass, are those of the masks of its labels."""

import numpy as np
import pytest

from store.truths.rle import encode, encode_labels


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (40, 3), (0, 4)])
@pytest.mark.parametrize("n_labels", [1, 4])
def test_labels_are_encoded_as_their_masks(size, n_labels):
    generator = np.random.default_rng(0)
    for lowest in (-1, 0):
        label_map = generator.integers(lowest, n_labels, size).astype(np.int16)
        labels = np.unique(label_map[label_map >= 0])
        expected = encode(label_map == labels[:, None, None])
        assert encode_labels(label_map) == list(zip(labels.tolist(), expected, strict=True))


def test_what_is_void_has_none():
    assert encode_labels(np.full((3, 4), -1, np.int16)) == []
