"""Groups of test images that are left out: against the formulas of means, and measures of the others computed anew."""

import math

import numpy as np
import pytest
import torch

from probe.evaluate import map_without_each
from probe.localisation.max_box_acc import MaxBoxAcc
from probe.metrics import mean_average_precision
from probe.result_files import over_seeds
from probe.segmentation.evaluate import Confusion
from probe.subsets import N_GROUPS, groups_of, without_each


@pytest.mark.parametrize("n", [1, 7, N_GROUPS, 1003])
def test_groups_are_of_one_size_and_drawn(n: int) -> None:
    groups = groups_of(n)
    sizes = np.bincount(groups, minlength=1)
    assert len(sizes) == min(n, N_GROUPS)
    assert sizes.max() - sizes.min() <= 1
    assert n < N_GROUPS or (np.diff(groups) != 1).any()  # not in turn: neighbours are often of one class


def test_they_are_the_same_everywhere() -> None:
    assert groups_of(8).tolist() == [0, 3, 1, 6, 4, 2, 7, 5]


def test_a_mean_varies_as_the_formula_says() -> None:
    """Of groups of one image each, that is the standard error to the last digit."""
    values = np.random.default_rng(0).standard_normal(N_GROUPS)
    without = without_each(N_GROUPS, lambda chosen: float(values[chosen].mean()))
    pseudo = N_GROUPS * values.mean() - (N_GROUPS - 1) * np.array(without)
    assert pseudo.mean() == pytest.approx(values.mean())
    assert pseudo.std(ddof=1) == pytest.approx(values.std(ddof=1))


def test_one_image_has_no_others() -> None:
    assert without_each(1, lambda chosen: float(chosen.sum())) == []


def test_average_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(50, 4, generator=generator), (torch.rand(50, 4, generator=generator) < 0.4).double()
    groups = torch.from_numpy(groups_of(50))
    expected = [mean_average_precision(scores[groups != g], labels[groups != g]).item() for g in range(N_GROUPS)]
    assert map_without_each(scores, labels) == expected
    assert len(set(expected)) > 10


def test_confusion() -> None:
    random, groups = np.random.default_rng(0), groups_of(30)
    images = [(random.integers(-1, 3, 20), random.integers(0, 3, 20)) for _ in groups]
    whole = Confusion(3)
    for (truth, predicted), group in zip(images, groups.tolist(), strict=True):
        whole.add(truth, predicted, group)
    for group, others in enumerate(whole.without_each()):
        expected = Confusion(3)
        for (truth, predicted), of in zip(images, groups.tolist(), strict=True):
            if of != group:
                expected.add(truth, predicted)
        np.testing.assert_array_equal(others.counts, expected.counts)
    assert group == N_GROUPS - 1
    assert list(Confusion(3).without_each()) == []


def test_localisation() -> None:
    random, groups, tally = np.random.default_rng(0), groups_of(40), MaxBoxAcc()
    best = random.random((40, 2, 255))
    for of_image in best:
        tally.add(of_image)
    without = tally.result().without
    for group in range(N_GROUPS):
        others = MaxBoxAcc()
        for of_image in best[groups != group]:
            others.add(of_image)
        expected = others.result()
        assert (without[group].by_iou, without[group].max_box_acc) == (expected.by_iou, expected.max_box_acc)


def test_it_is_kept_as_the_mean_over_seeds_where_all_are_known() -> None:
    assert over_seeds([1.0, 3.0], [[1.0, 2.0], [3.0, 6.0]])["without"] == [2.0, 4.0]
    assert "without" not in over_seeds([1.0], [[1.0, math.nan]])
    assert "without" not in over_seeds([1.0], [[]])
