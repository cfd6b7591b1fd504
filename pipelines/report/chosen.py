"""Which test images are shown."""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipelines.report.collect import Examples
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.datasets import ImageSet


def chosen_rows(images: "ImageSet", examples: Examples) -> list[int]:
    """Rows of the images to show: the named ones, or drawn by a seed (in the order of the set), or in turn over the classes.

    Raises:
        BeyondClsError: no image has that id.
    """
    rows = {sample.id: row for row, sample in enumerate(images.samples)}
    for wanted in examples.ids:
        if wanted not in rows:
            near = difflib.get_close_matches(wanted, rows, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"expected an id such as {next(iter(rows))!r}"
            raise BeyondClsError(f"there is no image {wanted!r} among the {len(rows):,} of {images.source}; {meant} (--image)")
    if examples.ids:
        return [rows[wanted] for wanted in dict.fromkeys(examples.ids)]
    if examples.seed is not None:
        drawn = np.random.default_rng(examples.seed).choice(len(images), min(examples.n, len(images)), replace=False)
        return sorted(map(int, drawn))
    return first_of_classes([sample.label for sample in images.samples], examples.n)


def chosen_ids(ids: Sequence[str], examples: Examples) -> list[int]:
    """Rows of the images to show of these: those asked for, if any is among them; else drawn by the seed, or spread evenly."""
    if wanted := [ids.index(wanted) for wanted in dict.fromkeys(examples.ids) if wanted in ids]:
        return wanted
    n = min(examples.n, len(ids))
    if examples.seed is not None:
        return sorted(np.random.default_rng(examples.seed).choice(len(ids), n, replace=False).tolist())
    return [row * len(ids) // n for row in range(n)]


def how_chosen(examples: Examples) -> str:
    """How the images were chosen, as a sentence."""
    if examples.ids:
        return "The test images that were asked for."
    if examples.seed is not None:
        return f"Test images drawn at random (seed {examples.seed})."
    return "The first test images of different classes."


def first_of_classes(labels: list[int | None], n: int) -> list[int]:
    """Rows of the first image of each class in the order of labels, then of the second of each, up to `n` rows."""
    seen: dict[int | None, int] = {}
    ranked = []
    for row, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], -1 if label is None else label, row))
    return [row for _, _, row in sorted(ranked)[:n]]
