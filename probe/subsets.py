"""Rows that are drawn: to learn from, to select on, and groups of test images that are left out in turn.

Which rows are drawn depends on the seed, the row numbers (the order of the images in their data set) and the labels, on nothing
else: every machine, every NumPy and the feature sets of all encoders of the same images give the same rows. Subsets need
no separate extraction. Unlabelled rows (-1) are never drawn. `rows` restricts the choice: `np.flatnonzero(store.labelled)`
leaves out what could not be read.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Int, Integer, UInt64

from probe.result_files import over_seeds
from store import BeyondClsError, FeatureStore, rows_of_ids

MASK = (1 << 64) - 1
N_GROUPS = 20
ROWS_AT_ONCE = 1024  # whose patch tokens are in memory
T = TypeVar("T")


def draws_of(rows: Int[np.ndarray, "n"], seed: int, purpose: str) -> UInt64[np.ndarray, "n"]:
    """A number for each row, [n] uint64, all different.

    SplitMix64 of seed, purpose and row: NumPy's generators may change with its version, and give numbers to places, not rows.

    Args:
        purpose: what is drawn; its first 8 letters tell it from other draws under the same seed.
    """
    start = _mix_bits(np.array([seed & MASK], np.uint64)) ^ np.frombuffer(purpose.encode()[:8].ljust(8), "<u8")
    return _mix_bits(_mix_bits(start) + rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix_bits(z: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), a permutation of the 64-bit numbers."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def groups_of(n: int) -> Int[np.ndarray, "n"]:
    """The group of each of n images, by its position: groups of one size, drawn at random and the same on every machine."""
    return draws_of(np.arange(n), 0, "left-out").argsort().argsort() % max(1, min(N_GROUPS, n))


def without_each(n: int, measure: Callable[[Bool[np.ndarray, "n"]], T]) -> list[T]:
    """What `measure` makes of those of n images that are chosen: all without each group in turn; nothing of a single image."""
    groups = groups_of(n)
    return [measure(groups != group) for group in range(groups.max(initial=0) + 1)] if n > 1 else []


def over_images(n: int, measure: Callable[[Bool[np.ndarray, "n"]], float]) -> dict[str, Any]:
    """What `measure` makes of all of n images, and without each group in turn: one value, as `over_seeds` writes it."""
    return over_seeds([measure(np.full(n, True))], [without_each(n, measure)])


def nearest_chosen(places: Int[np.ndarray, "n m"], chosen: Bool[np.ndarray, "n"], k: int) -> Int[np.ndarray, "c k"]:
    """For each chosen image, where among its neighbours the k nearest of those are that are chosen, too.

    As if the others were not there, if enough neighbours were looked for: of 2 k + 10, k are left without a group.

    Args:
        places: of the neighbours of each image, from the nearest on.
    """
    return np.argsort(~chosen[places[chosen]], axis=1, kind="stable")[:, :k]


def parts_of(rows: Int[np.ndarray, "n"]) -> list[Int[np.ndarray, "m"]]:
    """Rows in pieces whose patch tokens fit into memory."""
    return np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE))


def k_shot(labels: Integer[np.ndarray, "N *C"], k: int, seed: int = 0, rows: np.ndarray | None = None) -> Int[np.ndarray, "n"]:
    """k images of each class, ascending rows. With the same seed, those of a smaller k are among those of a larger k.

    Raises:
        BeyondClsError: a class of `labels` with fewer than k images (in `rows`), k below 1, or several labels an image.
    """
    if labels.ndim != 1:
        raise BeyondClsError(f"k of each class is not defined for labels {labels.shape} (several an image); use percentage")
    if k < 1:
        raise BeyondClsError(f"k is {k}, expected 1 or more images of each class")
    candidates = _candidates(labels, rows)
    counts = np.bincount(labels[candidates], minlength=labels.max() + 1)
    present = np.unique(labels[labels >= 0])
    least = present[counts[present].argmin()]
    if (n := counts[least]) < k:
        raise BeyondClsError(
            f"class {least} has {n} images, expected {k} or more; choose k ≤ {n}, or label it -1 to leave it out"
        )
    return np.sort(candidates[_turns_in_class(labels[candidates], draws_of(candidates, seed, "k-shot")) < k])


def percentage(
    labels: Integer[np.ndarray, "N *C"], percent: float, seed: int = 0, rows: np.ndarray | None = None
) -> Int[np.ndarray, "n"]:
    """That share of the images, ascending rows. With the same seed, those of a smaller share are among those of a larger one.

    With one label an image it is stratified: at least one image of each class, and as many in all as rounding `percent` gives
    (or one of each class, if that is more). Images are shared out by Webster's method: class c gets its share rounded at ½, by
    a divisor that makes the total right. (Largest remainders would take images away from a class as the total grows.)
    With several labels an image the total is right, but rare classes may have none.

    Raises:
        BeyondClsError: a percentage outside (0, 100], or no labelled image.
    """
    if not 0 < percent <= 100:
        raise BeyondClsError(f"percentage is {percent}, expected more than 0 and up to 100")
    candidates = _candidates(labels, rows)
    draws = draws_of(candidates, seed, "percentage")
    total = max(1, round(len(candidates) * percent / 100))
    if labels.ndim > 1:
        return np.sort(candidates[np.argsort(draws)[:total]])
    turns, classes = _turns_in_class(labels[candidates], draws), labels[candidates]
    first_of_class = turns == 0
    order = np.lexsort((draws, _shares_of_class(classes, turns), ~first_of_class))
    return np.sort(candidates[order[: max(total, int(first_of_class.sum()))]])


def hold_out(
    labels: Integer[np.ndarray, "N *C"], share: float = 0.1, seed: int = 0, rows: np.ndarray | None = None
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "m"]]:
    """Rows to train on and rows to select on: disjoint, together all labelled ones, each ascending.

    Stratified as `percentage` with one label an image, except that each class keeps an image to train on, and a class may have
    none that is held out. The draw differs from those of `percentage` and `k_shot` under the same seed.

    Args:
        share: of the images that is held out, 0…1; rounded to one image at least.

    Raises:
        BeyondClsError: a share outside (0, 1), or no image that can be spared.
    """
    if not 0 < share < 1:
        raise BeyondClsError(f"the share that is held out is {share}, expected more than 0 and less than 1")
    candidates = _candidates(labels, rows)
    draws = draws_of(candidates, seed, "hold-out")
    total = max(1, round(len(candidates) * share))
    if labels.ndim > 1:
        order, spare = np.argsort(draws), len(candidates) - 1
    else:
        classes = labels[candidates]
        turns = _turns_in_class(classes, draws)
        last_of_class = turns == np.bincount(classes)[classes] - 1
        order, spare = np.lexsort((draws, _shares_of_class(classes, turns), last_of_class)), int((~last_of_class).sum())
    if not spare:
        n = len(candidates)
        raise BeyondClsError(f"none of {n} images can be held out: classes would have none left; give more, or a single value")
    held_out = np.zeros(len(candidates), bool)
    held_out[order[: min(total, spare)]] = True
    return np.sort(candidates[~held_out]), np.sort(candidates[held_out])


def _candidates(labels: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """Rows that may be drawn, [n] int64."""
    chosen = np.arange(len(labels)) if rows is None else np.unique(np.asarray(rows, np.int64))
    if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < len(labels):
        raise BeyondClsError(f"rows are {chosen[0]} to {chosen[-1]}, expected 0 to {len(labels) - 1}, those of the labels")
    if labels.ndim == 1:
        chosen = chosen[labels[chosen] >= 0]
    if not len(chosen):
        raise BeyondClsError("there is no labelled image to choose from; a subset needs labels")
    return chosen


def _turns_in_class(classes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The index at which each image is drawn within its class, from 0."""
    order = np.lexsort((draws, classes))
    sizes = np.bincount(classes)
    turns = np.empty(len(classes), np.int64)
    turns[order] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return turns


def _shares_of_class(classes: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """The share of its class at which Webster's method takes each image: the n-th of N at (n - ½) / N."""
    return (turns + 0.5) / np.bincount(classes)[classes]


def readable_rows(store: FeatureStore, ids: Sequence[str]) -> Int[np.ndarray, "n"]:
    """Rows of images that are named.

    Raises:
        BeyondClsError: an image is not in the set, or could not be read; or views are windows.
    """
    store.check_evaluation_crop()
    rows = rows_of_ids(store, ids)
    if unread := [name for name, row in zip(ids, rows, strict=True) if not store.valid[row]]:
        raise BeyondClsError(
            f"{len(unread)} of {len(ids)} images could not be read when {store.where} was extracted, first {unread[0]!r}; see "
            "`beyondcls store verify`, or leave them out"
        )
    return rows
