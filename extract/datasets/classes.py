"""Which class a label means, and what an extraction says of the classes that it has found."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from store.format.classes import is_numeric, whole_number

MISSING = {"nan", "na", "<na>", "n/a", "none", "null"}  # among numbers, where pandas or Python has written that there is none
SPLITS = {"train", "trainval", "training", "val", "valid", "validation", "dev", "eval", "test", "testing", "holdout"}


class Labels:
    """The labels of a list as class numbers; `names` of the classes in order, None where labels are their numbers."""

    def __init__(self, names: Sequence[str] | None):
        self.names, self._n_named = names, Counter(names or ())
        self._by_name = {name: number for number, name in enumerate(names or ())}
        values = [whole_number(name) for name in names or ()]
        n_called = Counter(values)
        # Classes by the whole number that they are called; None where two are called the same.
        self._by_number = {v: label if n_called[v] == 1 else None for label, v in enumerate(values) if v is not None}

    @classmethod
    def of(cls, labels: Iterable[str]) -> "Labels":
        """Those of a list without a file of class names: numbers if all are, else names in alphabetical order."""
        are_numbers = all(is_numeric(label) or label.lower() in MISSING for label in labels)
        return cls(None if are_numbers else sorted(set(labels)))

    def number(self, label: str) -> int | None:
        """The class that a label means; None for one that says that there is none.

        A number that is no name is a place in the list of names, from 0, unless there are names that are numbers. ValueError
        where it means no class, or could mean two.
        """
        if self._n_named[label] > 1:
            raise ValueError(f"label {label[:40]!r} is the name of two classes; give each its own name, or label by number")
        if label in self._by_name:
            return self._by_name[label]
        if label.lower() in MISSING and (self.names is None or self._by_number):
            return None
        number = whole_number(label)
        if number is not None and (named := self._by_number.get(number)) is not None:
            return named
        if self.names is not None and (number is None or self._by_number):
            kind = "the name of no class" if number is not None else "not a number, and no class of that name is known"
            raise ValueError(f"label {label[:40]!r} is {kind}; correct it, or complete the list of names")
        if number is None or number < 0:
            kind = "negative" if number is not None else "a fraction, or too long"
            raise ValueError(
                f"label {label[:40]!r} is {kind}, expected a whole number from 0, or a name; leave it empty if it says that "
                "there is no label; if it is what a class is called, list the names of all classes with --classes"
            )
        return number


def classes_in_words(counts: Sequence[tuple[str, int]], are_named: bool) -> str:
    """`classes: 10, first airplane, last truck; cat has the fewest images, 24, dog the most, 60`, by images of each class."""
    if not any(n for _, n in counts):
        return "classes: none, as no image has a label"
    (fewest, least), (most, n_most) = (chosen(counts, key=lambda count: count[1]) for chosen in (min, max))
    spread = f"{n_most:,} images each"
    if least < n_most:
        spread = f"{fewest} has the fewest images, {least:,}, {most} the most, {n_most:,}"
    unnamed, n_empty = " without names" * (not are_named), sum(not n for _, n in counts)
    empty = f", {n_empty:,} of them without an image" if n_empty else ""
    return f"classes: {len(counts):,}{unnamed}{empty}, first {counts[0][0]}, last {counts[-1][0]}; {spread}"


def caution_on_classes(counts: Sequence[tuple[str, int]]) -> str | None:
    """What to beware of where images have one label: that classes are splits, or that there is a single one."""
    names = [name for name, n in counts if n]
    if len(names) > 1 and all(SPLITS.intersection(re.split(r"[\W\d_]+", name.lower())) for name in names):
        return f"the classes are {', '.join(names)}, which look like splits; name one of them, as in --split {names[0]}"
    if len(names) == 1:
        return f"all labelled images are of one class, {names[0]}; a probe needs two or more, as folders or in a list"
    return None
