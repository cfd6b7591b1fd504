"""Which classes a head chooses among on another test set, and which of them an image of that set shows."""

import csv
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probe.sources import few_of
from store import BeyondClsError
from store.format.classes import numbers_among

FORM = "a line for each class: CLASS, or CLASS-OF-THE-TEST-SET,CLASS[,CLASS…], in quotes where a name has a comma"


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Choices of a head.

    Attributes:
        groups: classes of the head by choice, one or several, of which the highest logit counts.
        labels: for each class of the test set the choice that is right, -1 for a class that is left out.
    """

    groups: tuple[tuple[int, ...], ...]
    labels: Int64[np.ndarray, "C"]

    def choose(self, logits: Float[Tensor, "... K"]) -> Float[Tensor, "... G"]:
        """The logit of each choice."""
        widest = max(map(len, self.groups))
        index = [[*group, *group[:1] * (widest - len(group))] for group in self.groups]
        return logits[..., torch.tensor(index, device=logits.device)].amax(-1)

    def choices_of(self, n_classes: int) -> Int64[np.ndarray, "K"]:
        """For each class of the head the choice that it is in, -1 for none."""
        choices = np.full(n_classes, -1, np.int64)
        for choice, group in enumerate(self.groups):
            choices[list(group)] = choice
        return choices


def same_names(head: Sequence[str], test: Sequence[str], present: Int64[np.ndarray, "_"], has_names: bool) -> ClassMap:
    """All classes of a head are choices, and classes of the test set are those of the same names.

    Args:
        present: classes of which the test set has images.
        has_names: whether either has names; otherwise these are numbers, which mean the same only where there are as many.

    Raises:
        BeyondClsError: the test set has images of other classes, or numbers for other ones.
    """
    numbers = numbers_among(head, test)
    labels = np.arange(len(test)) if numbers is None else numbers
    lacking = [test[label] for label in present if labels[label] < 0]
    if lacking or (not has_names and len(head) != len(test)):
        which = f"class {lacking[0]!r}, which the head lacks" if lacking else f"{len(test)} classes without names"
        raise BeyondClsError(
            f"it has {which}; expected those of the head, {few_of(head)}: name for each class the head's in a "
            "file, and give that by --map NAME=FILE"
        )
    return ClassMap(tuple((label,) for label in range(len(head))), labels)


def read_class_map(file: Path, head: Sequence[str], test: Sequence[str]) -> ClassMap:
    """Choices that a file names: a line `CLASS` for a class of a head that the test set calls the same or lacks, or a line
    `CLASS OF THE TEST SET,CLASS` for one that it calls otherwise; further classes may follow, any of which is right then.

    Lines that begin with # say nothing. Images of classes that the file does not name are left out.

    Args:
        head: names of its classes; so `test`, those of the test set.

    Raises:
        BeyondClsError: no such file, or one of another form; a name that nothing has; a class that is mapped twice.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BeyondClsError(f"{file} is no map of classes ({error}); expected text with {FORM}") from error
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [[_normalise_name(cell) for cell in row] for row in csv.reader(lines, skipinitialspace=True)]
    if not rows:
        raise BeyondClsError(f"{file} names no class; expected {FORM}")
    of_head, of_test = ({_normalise_name(name): label for label, name in enumerate(names)} for names in (head, test))
    if len(of_head) < len(head) or len(of_test) < len(test):
        raise BeyondClsError(f"{file} cannot name classes where two are called the same; give each its own name")
    alone = {row[0] for row in rows if len(row) == 1}
    for whose, known, names, allowed in (
        ("head", of_head, [name for row in rows for name in (row[1:] or row)], of_head.keys()),
        ("test set", of_test, [row[0] for row in rows], of_test.keys() | alone),
    ):
        if unknown := [name for name in names if name not in allowed]:
            expected = f"with {few_of(list(known))}; expected {FORM}"
            raise BeyondClsError(f"{file} names {unknown[0]!r}, which is no class of the {whose}, {expected}")
        if twice := [name for name, n in Counter(names).items() if n > 1]:
            raise BeyondClsError(
                f"{file} maps {twice[0]!r}, a class of the {whose}, twice; expected each once: join lines of one class of the "
                "test set as CLASS-OF-THE-TEST-SET,CLASS,CLASS, or decide for one"
            )
    choices = {row[0]: choice for choice, row in enumerate(rows)}
    labels = np.array([choices.get(name, -1) for name in of_test], np.int64)
    return ClassMap(tuple(tuple(of_head[name] for name in (row[1:] or row)) for row in rows), labels)


def _normalise_name(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip()
