"""Which whole number a name is, and which class of one set is which of another."""

import numpy as np
import pytest

from store import StoreError
from store.format.classes import are_identifiers, are_their_numbers, numbers_among, renumber, whole_number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *[("7.", 7), (" 007 ", 7), ("7.000000000000000000e+00", 7), ("1E+05", 100_000), ("-1.0", -1), ("+3", 3), ("0", 0)],
        *[("1" * 18, int("1" * 18)), ("1e-0", 1)],
        *[(name, None) for name in ("0.5", "1e-1", "1" * 19, "1e99", "1" * 5000, "10.0000000000000000001")],
        *[(name, None) for name in ("", "cat", "nan", "1_000", "1,000", "0x1", "²", "٣", "1e", ".", "7 8")],
    ],
)
def test_which_names_are_whole_numbers(name, number):
    assert whole_number(name) == number


@pytest.mark.parametrize(
    ("names", "others", "numbers"),
    [
        ("cat dog owl", "cat dog owl", None),
        ("cat owl", "cat dog owl", [0, -1, 1]),
        ("0 1 10 11 2", "0 1 2 10 11", [0, 1, 4, 2, 3]),
        ("0 1 2", "0.0 1.0 2.0", None),
        ("000 001 002", "2 1 0", [2, 1, 0]),
        ("7 007", "007 7", [1, 0]),  # apart in one list, so by their letters
        ("7 007", "7", [0]),
        ("7 007", "7.0", [-1]),
        ("caf\u00e9 tea", "tea cafe\u0301", [1, 0]),  # é as Linux and as macOS write it
        ("crane crane", "crane crane", None),
        ("cat dog", "Cat dog", [-1, 1]),
        ("", "cat", None),
    ],
)
def test_classes_that_are_called_the_same(names, others, numbers):
    among = numbers_among(names.split() or None, others.split() or None)
    assert (among if among is None else among.tolist()) == numbers


@pytest.mark.parametrize(("names", "others"), [("crane owl crane", "owl crane"), ("owl crane", "crane crane")])
def test_a_name_of_two_classes_says_nothing(names, others):
    with pytest.raises(StoreError, match="two classes are called 'crane'"):
        numbers_among(names.split(), others.split())


@pytest.mark.parametrize(
    ("names", "are"), [("0 1 2", True), ("000 1.0 2", True), ("0 1 10 2", False), ("1 2 3", False), ("cat dog", False)]
)
def test_names_that_are_the_numbers_of_their_classes(names, are):
    assert are_their_numbers(names.split()) is are


def test_labels_as_another_set_numbers_them():
    labels = np.array([0, 1, -1, 2, 0])
    assert renumber(labels, None, 3) is labels
    assert renumber(labels, np.array([2, -1, 0]), 3).tolist() == [2, -1, -1, 0, 2]
    several = np.array([[1, 0], [1, 1]], np.uint8)
    moved = renumber(several, np.array([2, 0]), 3)
    assert (moved.tolist(), moved.dtype) == ([[0, 0, 1], [1, 0, 1]], several.dtype)


@pytest.mark.parametrize(
    ("highest", "n_classes", "are"), [(999, 3, False), (21_840, 100, False), (203_093, 203_094, False), (5_219_173, 12, True)]
)
def test_labels_that_are_identifiers(highest, n_classes, are):
    assert are_identifiers(highest, n_classes) is are
