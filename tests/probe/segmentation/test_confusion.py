"""The confusion matrix and its measures, by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from probe.segmentation.evaluate import Confusion
from store import BeyondClsError


def test_by_hand():
    confusion = Confusion(4)
    confusion.add(np.array([[0, 0, 1], [1, -1, 2]]), np.array([[0, 1, 1], [1, 3, 0]]))
    assert confusion.counts.tolist() == [[1, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(confusion.iou, [100 / 3, 200 / 3, 0, np.nan], err_msg="no pixel is or is said to be of class 3")
    assert confusion.miou == pytest.approx(100 / 3)
    assert (confusion.n, confusion.accuracy) == (5, 60)


def test_as_scikit_learn():
    generator = np.random.default_rng(0)
    truth, predicted = generator.integers(-1, 6, 500), generator.integers(0, 5, 500)
    confusion = Confusion(9)
    for part in (slice(0, 77), slice(77, None)):
        confusion.add(truth[part], predicted[part])
    labelled = truth >= 0
    assert confusion.miou == pytest.approx(100 * jaccard_score(truth[labelled], predicted[labelled], average="macro"))


def test_nothing_labelled_is_no_number():
    confusion = Confusion(2)
    confusion.add(np.array([-1]), np.array([0]))
    assert np.isnan(confusion.miou)
    assert np.isnan(confusion.accuracy)


@pytest.mark.parametrize(("truth", "predicted"), [([2], [0]), ([0], [2]), ([0], [-1]), ([-2], [0])])
def test_other_labels_are_refused(truth, predicted):
    with pytest.raises(BeyondClsError, match=r"expected 0 to 1 \(void is -1\)"):
        Confusion(2).add(np.array(truth), np.array(predicted))
