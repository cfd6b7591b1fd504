"""Rows that are drawn: what is promised of subsets, and groups of test images that are left out."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from probe.evaluate import map_without_each
from probe.localisation.max_box_acc import at_best_thresholds
from probe.metrics import mean_average_precision
from probe.segmentation.evaluate import Confusion
from probe.subsets import N_GROUPS, draws_of, groups_of, hold_out, k_shot, percentage, without_each
from store import BeyondClsError

SIZES = (40, 7, 3, 90, 1)
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), SIZES))
UNLABELLED = np.where(np.arange(141) % 5 == 2, -1, LABELS)
SEVERAL = (np.random.default_rng(1).random((50, 6)) < 0.3).astype(np.uint8)
PERCENTS = (0.5, 1, 5, 10, 12, 33.3, 50, 90, 100)
NAN = float("nan")


def held_out(*arguments):
    return hold_out(*arguments)[1]


def counts(labels: np.ndarray, rows: np.ndarray) -> list[int]:
    return np.bincount(labels[rows], minlength=labels.max() + 1).tolist()


def test_draws_stay_as_they_are():
    """Another algorithm would change the subsets, and the intervals, that people have reported on."""
    expected = [3286132929266391981, 17740423224614614880, 11361805079475505197]
    assert draws_of(np.array([0, 1, 10**9]), 0, "k-shot").tolist() == expected
    assert k_shot(np.arange(60) % 3, 2, seed=7).tolist() == [10, 13, 30, 35, 42, 53]
    assert groups_of(8).tolist() == [0, 3, 1, 6, 4, 2, 7, 5]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_of_each_class(k):
    labels = LABELS[LABELS != 4]
    rows = k_shot(labels, k)
    assert counts(labels, rows) == [k] * 4
    assert rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize(("draw", "size"), [(k_shot, 9), (percentage, 20), (held_out, 0.2)])
def test_every_draw(draw, size):
    """Seeds differ and repeat; rows restrict the choice without another draw; what has no label is never chosen."""
    labels, rows = np.arange(200) % 4, np.arange(50, 200)
    assert np.array_equal(draw(labels, size, 3), draw(labels, size, 3))
    assert not np.array_equal(draw(labels, size, 3), draw(labels, size, 4))
    of_rows = draw(labels, size, 2, rows)
    assert set(of_rows) <= set(rows)
    assert np.array_equal(of_rows, draw(labels, size, 2, rows[::-1]))  # in any order
    if draw is k_shot:
        of_all_rows = draw(labels, size, 2)
        assert set(of_all_rows[of_all_rows >= 50]) <= set(of_rows)
    unlabelled = np.where(np.arange(200) % 7 == 0, -1, labels)
    assert (unlabelled[draw(unlabelled, size)] >= 0).all()


@pytest.mark.parametrize(
    ("labels", "draw", "sizes"),
    [(np.arange(200) % 4, k_shot, range(1, 51)), (LABELS, percentage, PERCENTS), (SEVERAL, percentage, PERCENTS)],
)
def test_smaller_subsets_lie_in_larger_ones(labels, draw, sizes):
    subsets = [set(draw(labels, size, 1).tolist()) for size in sizes]
    assert all(small <= large for small, large in pairwise(subsets))
    assert subsets[-1] == set(range(len(labels)))


@pytest.mark.parametrize("percent", PERCENTS)
def test_percentage_is_stratified_and_the_total_is_right(percent):
    got = np.array(counts(LABELS, percentage(LABELS, percent)))
    assert got.sum() == max(5, round(141 * percent / 100))
    assert got.min() >= 1
    if percent >= 5:
        assert abs(got - np.maximum(np.array(SIZES) * percent / 100, 1)).max() < 2
    assert len(percentage(SEVERAL, percent)) == max(1, round(50 * percent / 100))


def test_percentages_of_equal_classes_are_equal_and_where_a_share_grows_no_class_loses():
    """Largest remainders would: of 6, 6 and 2 seats, the small class has 2 of 10 but 1 of 11."""
    labels = np.arange(1000) % 10
    assert counts(labels, percentage(labels, 10)) == [10] * 10
    assert sorted(counts(labels, percentage(labels, 10.3))) == [10] * 7 + [11] * 3
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
    assert 0 < len(np.intersect1d(percentage(labels, 10), held_out(labels, 0.1))) < 30  # 10 expected


def test_one_class_does_not_move_another():
    """Relabelling (another list of classes) changes only the classes that it touches."""
    labels = np.arange(100) % 4
    merged = np.where(labels == 3, 2, labels)
    assert np.array_equal(*(rows[np.isin(labels[rows], (0, 1))] for rows in (k_shot(labels, 5), k_shot(merged, 5))))


@pytest.mark.parametrize(
    ("draw", "arguments", "message"),
    [
        (k_shot, (LABELS, 2), r"class 4 has 1 images, expected 2 or more; choose k ≤ 1, or .* -1"),
        (k_shot, (np.array([0, 1, 0]), 1, 0, np.array([0, 2])), "class 1 has 0 images, expected 1"),
        (k_shot, (SEVERAL, 1), r"labels \(50, 6\) .*; use percentage"),
        (k_shot, (LABELS, 0), "k is 0, expected 1"),
        *((percentage, (LABELS, p), f"percentage is {p}, expected more than 0") for p in (0, -1, 101, NAN)),
        *((hold_out, (LABELS, s), f"held out is {s}, expected more than 0") for s in (0, 1, -0.1, NAN)),
        (hold_out, (np.arange(3),), "none of 3 images can be held out"),
        (hold_out, (SEVERAL[:1],), "none of 1 images can be held out"),
        *(
            (draw, (np.full(4, -1), size), "no labelled image")
            for draw, size in ((k_shot, 1), (percentage, 5), (hold_out, 0.1))
        ),
        (percentage, (LABELS, 5, 0, np.arange(142)), "rows are 0 to 141, expected 0 to 140"),
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


def test_a_mean_varies_as_the_formula_says() -> None:
    """Of groups of one image each, that is the standard error to the last digit; one image has no others."""
    values = np.random.default_rng(0).standard_normal(N_GROUPS)
    without = without_each(N_GROUPS, lambda chosen: float(values[chosen].mean()))
    pseudo = N_GROUPS * values.mean() - (N_GROUPS - 1) * np.array(without)
    assert pseudo.mean() == pytest.approx(values.mean())
    assert pseudo.std(ddof=1) == pytest.approx(values.std(ddof=1))
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
    images = [(random.integers(-1, 3, 20), random.integers(0, 3, 20), group) for group in groups.tolist()]
    whole = Confusion(3)
    for image in images:
        whole.add(*image)
    for group, others in enumerate(whole.without_each()):
        expected = Confusion(3)
        for truth, predicted, of in images:
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
    assert group == N_GROUPS - 1
