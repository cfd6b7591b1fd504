"""Classes are what they are called: which whole number a name is, and which class of one set is which of another."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

import numpy as np
from jaxtyping import Int64, Integer

from store.errors import StoreError

MANY = 1 << 15  # a label map's int16 ends there, and few other sets use all numbers up to their highest label


@lru_cache(1 << 16)  # of a million labels few differ
def whole_number(name: str) -> int | None:
    """The whole number that a name is, as pandas, NumPy or R may have written it: `7`, `7.0`, `007`, `7.00e+00`, `1e+05`.

    None for what is no number, a fraction, and numbers of more than 18 digits.
    """
    if not is_numeric(name):
        return None
    value = Decimal(name.strip())
    return int(value) if value.adjusted() < 18 and value == value.to_integral_value() else None


def is_numeric(name: str) -> bool:
    """Whether a name is a number, fractions and negative ones included."""
    return re.fullmatch(r"[+-]?\d{1,100}(\.\d{0,100})?(e[+-]?\d{1,2})?", name.strip(), re.ASCII | re.IGNORECASE) is not None


def are_identifiers(highest: int, n_classes: int) -> bool:
    """Whether labels up to `highest`, of which `n_classes` occur, are identifiers (WordNet offsets) and no class numbers."""
    return highest >= MANY and highest >= 2 * n_classes


def are_their_numbers(names: Sequence[str]) -> bool:
    """Whether each class is called by its number, so that a set without names means the same by it."""
    return all(whole_number(name) == label for label, name in enumerate(names))


def numbers_among(names: Sequence[str] | None, others: Sequence[str] | None) -> Int64[np.ndarray, "K"] | None:
    """For each class of `others`, which one of `names` is called the same, -1 for none.

    None where numbers mean the same: names are alike and in one order, or one of the sets has none. An accent that is written
    in two ways is the same, and so is a whole number, unless a list tells the two apart (`7` beside `007`).
    """
    ours, theirs = (_comparable_names(side or (), of_numbers=False) for side in (names, others))
    if ours == theirs or not ours or not theirs:
        return None
    by_number = [_comparable_names(side, of_numbers=True) for side in (ours, theirs)]
    if all(len(set(numbers)) == len(set(texts)) for numbers, texts in zip(by_number, (ours, theirs), strict=True)):
        ours, theirs = by_number
    for side in (ours, theirs):
        if twice := [name for name, n in Counter(side).items() if n > 1]:
            raise StoreError(f"two classes are called {twice[0]!r}, so names do not say which is which; give each its own name")
    number = {name: label for label, name in enumerate(ours)}
    return None if ours == theirs else np.array([number.get(name, -1) for name in theirs], np.int64)


def _comparable_names(names: Sequence[str], of_numbers: bool) -> list[str]:
    if of_numbers:
        return [name if (number := whole_number(name)) is None else str(number) for name in names]
    return [unicodedata.normalize("NFC", name).strip() for name in names]


def renumber(
    labels: Integer[np.ndarray, "N *C"], numbers: Int64[np.ndarray, "_"] | None, n_classes: int
) -> Integer[np.ndarray, "N *K"]:
    """Labels by the numbers that another set gives its `n_classes` classes (`numbers_among`); -1 for a class that it lacks."""
    if numbers is None:
        return labels
    if labels.ndim == 1:
        return np.where(labels >= 0, numbers[labels], -1)
    columns = np.zeros((len(labels), n_classes), labels.dtype)
    columns[:, numbers[numbers >= 0]] = labels[:, numbers >= 0]
    return columns
