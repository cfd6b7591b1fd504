"""Rows that are drawn: what is promised of subsets, and groups of test images that are left out."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from probe.evaluate import map_without_each
from probe.localisation.max_box_acc import at_best_thresholds
from probe.metrics import mean_average_precision
from probe.result_files import over_seeds
from probe.segmentation.evaluate import Confusion
from probe.subsets import N_GROUPS, draws_of, groups_of, hold_out, k_shot, percentage, without_each
from store import BeyondClsError

SIZES = (40, 7, 3, 90, 1)
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), SIZES))
UNLABELLED = np.where(np.arange(141) % 5 == 2, -1, LABELS)
SEVERAL = (np.random.default_rng(1).random((50, 6)) < 0.3).astype(np.uint8)
PERCENTS = (0.5, 1, 5, 10, 12, 33.3, 50, 90, 100)


def counts(labels: np.ndarray, rows: np.ndarray) -> list[int]:
    return np.bincount(labels[rows], minlength=labels.max() + 1).tolist()


def test_draws_stay_as_they_are():
    """Another algorithm would change the subsets that people have reported on."""
    expected = [3286132929266391981, 17740423224614614880, 11361805079475505197]
    assert draws_of(np.array([0, 1, 10**9]), 0, "k-shot").tolist() == expected
    assert k_shot(np.arange(60) % 3, 2, seed=7).tolist() == [10, 13, 30, 35, 42, 53]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_of_each_class(k):
    rows = k_shot(LABELS[LABELS != 4], k)
    assert counts(LABELS[LABELS != 4], rows) == [k] * 4
    assert rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()


def test_seeds_differ_and_repeat():
    labels = np.arange(100) % 2
    assert np.array_equal(k_shot(labels, 9, 3), k_shot(labels, 9, 3))
    assert not np.array_equal(k_shot(labels, 9, 3), k_shot(labels, 9, 4))
    assert not np.array_equal(percentage(labels, 20, 3), percentage(labels, 20, 4))
    assert not np.array_equal(hold_out(labels, 0.2, 3)[1], hold_out(labels, 0.2, 4)[1])


def test_each_row_has_the_same_chance():
    labels = np.arange(20) % 2
    drawn = np.bincount(np.concatenate([k_shot(labels, 3, seed) for seed in range(2000)]), minlength=20)
    assert abs(drawn / 2000 - 0.3).max() < 0.05  # five standard deviations


def test_smaller_subsets_lie_in_larger_ones():
    labels = np.arange(200) % 4
    for labels_, subset, sizes in (
        (labels, k_shot, range(1, 51)),
        (LABELS, percentage, PERCENTS),
        (SEVERAL, percentage, PERCENTS),
    ):
        subsets = [set(subset(labels_, size, 1).tolist()) for size in sizes]
        assert all(small <= large for small, large in pairwise(subsets))
        assert subsets[-1] == set(range(len(labels_)))


@pytest.mark.parametrize("percent", PERCENTS)
def test_percentage_is_stratified_and_the_total_is_right(percent):
    got = np.array(counts(LABELS, percentage(LABELS, percent)))
    assert got.sum() == max(5, round(141 * percent / 100))
    assert got.min() >= 1
    exact = np.array(SIZES) * percent / 100
    if percent >= 5:
        assert abs(got - np.maximum(exact, 1)).max() < 2
    assert len(percentage(SEVERAL, percent)) == max(1, round(50 * percent / 100))


def test_percentages_of_equal_classes_are_equal():
    labels = np.arange(1000) % 10
    assert counts(labels, percentage(labels, 10)) == [10] * 10
    assert sorted(counts(labels, percentage(labels, 10.3))) == [10] * 7 + [11] * 3


def test_where_a_share_grows_no_class_loses():
    """Largest remainders would: of 6, 6 and 2 seats, the small class has 2 of 10 but 1 of 11."""
    labels = np.repeat(np.arange(3), (6, 6, 2))
    small = [counts(labels, percentage(labels, 100 * n / 14))[2] for n in range(3, 15)]
    assert small == sorted(small)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("labels", [LABELS, UNLABELLED, SEVERAL], ids=["one", "unlabelled", "several"])
def test_hold_out_splits_what_is_labelled(labels, share):
    train, held = hold_out(labels, share)
    labelled = np.flatnonzero(labels >= 0) if labels.ndim == 1 else np.arange(50)
    assert np.array_equal(np.sort(np.concatenate([train, held])), labelled)
    assert len(held) >= 1
    if labels.ndim == 1:
        assert set(labels[train]) == set(labels[labelled])  # every class can be learnt
    if share <= 0.3:
        assert len(held) == max(1, round(share * len(labelled)))


def test_hold_out_is_no_percentage():
    """A percentage to learn from and a hold-out to select on, both of seed 0, must not be the same images."""
    labels = np.arange(1000) % 2
    both = np.intersect1d(percentage(labels, 10), hold_out(labels, 0.1)[1])
    assert 0 < len(both) < 30  # 10 expected


@pytest.mark.parametrize("draw", [lambda *a: k_shot(*a, 2), lambda *a: percentage(*a, 20), lambda *a: hold_out(*a, 0.2)[1]])
def test_unlabelled_rows_are_never_chosen(draw):
    labels = np.where(np.arange(200) % 7 == 0, -1, np.arange(200) % 3)
    assert (labels[draw(labels)] >= 0).all()


def test_rows_restrict_the_choice_without_another_draw():
    labels, rows = np.arange(200) % 4, np.arange(50, 200)
    for subset in (k_shot(labels, 5, 2, rows), percentage(labels, 10, 2, rows), *hold_out(labels, 0.1, 2, rows)):
        assert set(subset) <= set(rows)
    of_all_rows, of_some_rows = k_shot(labels, 30, 2), k_shot(labels, 30, 2, rows)
    assert set(of_all_rows[of_all_rows >= 50]) <= set(of_some_rows)
    assert np.array_equal(of_some_rows, k_shot(labels, 30, 2, rows[::-1]))  # in any order


def test_one_class_does_not_move_another():
    """Relabelling (another list of classes) changes only the classes that it touches."""
    labels = np.arange(100) % 4
    merged = np.where(labels == 3, 2, labels)
    mine = [rows[np.isin(labels[rows], (0, 1))] for rows in (k_shot(labels, 5), k_shot(merged, 5))]
    assert np.array_equal(*mine)


NAN = float("nan")


@pytest.mark.parametrize(
    ("draw", "arguments", "message"),
    [
        (k_shot, (LABELS, 2), r"class 4 has 1 images, expected 2 or more; choose k ≤ 1, or .* -1"),
        (k_shot, (np.array([0, 1, 0]), 1, 0, np.array([0, 2])), "class 1 has 0 images, expected 1"),
        (k_shot, (SEVERAL, 1), r"not defined for labels \(50, 6\) \(several an image\); use percentage"),
        (k_shot, (LABELS, 0), "k is 0, expected 1 or more"),
        *((percentage, (LABELS, p), f"percentage is {p}, expected more than 0") for p in (0, -1, 101, NAN)),
        *((hold_out, (LABELS, s), f"held out is {s}, expected more than 0 and less than 1") for s in (0, 1, -0.1, NAN)),
        (hold_out, (np.arange(3),), "none of 3 images can be held out: each class would be left without"),
        (hold_out, (SEVERAL[:1],), "none of 1 images can be held out"),
        (k_shot, (np.full(4, -1), 1), "no labelled image to choose from"),
        (percentage, (np.full(4, -1), 5), "no labelled image to choose from"),
        (hold_out, (np.full(4, -1),), "no labelled image to choose from"),
        (percentage, (LABELS, 5, 0, np.arange(142)), "rows are 0 to 141, expected 0 to 140, those of the labels"),
    ],
)
def test_what_cannot_be_drawn(draw, arguments, message):
    with pytest.raises(BeyondClsError, match=message):
        draw(*arguments)


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
    groups, found = groups_of(40), np.random.default_rng(0).random((40, 4, 255)) < 0.5
    without = at_best_thresholds(list(found)).without
    for group in range(N_GROUPS):
        expected = at_best_thresholds(list(found[groups != group]))
        assert (without[group].by_iou, without[group].max_box_acc) == (expected.by_iou, expected.max_box_acc)


def test_it_is_kept_as_the_mean_over_seeds_where_all_are_known() -> None:
    assert over_seeds([1.0, 3.0], [[1.0, 2.0], [3.0, 6.0]])["without"] == [2.0, 4.0]
    assert "without" not in over_seeds([1.0], [[1.0, math.nan]])
    assert "without" not in over_seeds([1.0], [[]])
