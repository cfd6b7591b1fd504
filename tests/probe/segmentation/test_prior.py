"""Baselines that see no image: what training patches are most often, and as often as they are."""

import numpy as np

from probe.segmentation.run import drawn, most_frequent


def test_baselines():
    counts = np.array([100, 0, 600, 300])
    assert (most_frequent(counts, 2, 9) == 2).all()
    labels = drawn(counts, 50, 200)
    assert (labels.shape, labels.dtype) == ((50, 200), np.int16)
    np.testing.assert_allclose(np.bincount(labels.ravel(), minlength=4) / 10_000, counts / 1000, atol=0.02)
    assert not np.array_equal(labels[0], labels[1]), "each patch by itself"
    np.testing.assert_array_equal(labels, drawn(counts, 50, 200), "the same each time")
    assert not np.array_equal(labels, drawn(counts, 50, 200, seed=1))
