"""Truths of dense tasks that a data set has: label maps and instances, read when they are asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from extract.datasets.sample import DataError, Sample
from store import BeyondClsError
from store.errors import unknown
from store.truths.columns import Instance, Segment, TruthColumns, instance_columns, segment_columns

if TYPE_CHECKING:
    from extract.datasets.image_set import ImageSet

NAMES = ("segmentation", "instances")
ALL, NONE = "all", "none"
MOST_NAMED = 10  # problems in a message


class Truths(Protocol):
    """Truths of one kind.

    Attributes:
        classes: names in order of labels.
    """

    classes: Sequence[str]

    def read(self, samples: Sequence[Sample]) -> tuple[Sequence[Sequence[Segment] | Sequence[Instance]], list[str]]:
        """Segments or instances of each image, none of those with a problem; and what is wrong with others, a line each."""


def chosen_truths(images: "ImageSet", truths: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the truths to keep, in a fixed order.

    Args:
        truths: names; "all" that the data set has, "none"; by default what is usual for its form.

    Raises:
        BeyondClsError: an unknown name, or the data set has no such truths.
    """
    if truths is None:
        return tuple(name for name in NAMES if name in images.usual_truths)
    if truths in (ALL, NONE):
        return tuple(name for name in NAMES if truths == ALL and name in images.truths)
    chosen = truths.split(",") if isinstance(truths, str) else truths
    for name in chosen:
        if name not in NAMES:
            raise BeyondClsError(unknown("kind of truths", name, (*NAMES, ALL, NONE)))
        if name not in images.truths:
            has = f"it has {', '.join(images.truths)}" if images.truths else "it has none"
            raise BeyondClsError(
                f"{images.source} has no {name} ({has}); leave out --truths {name}, or name a form of data set that has it "
                "with --form"
            )
    return tuple(name for name in NAMES if name in chosen)


def columns_of(name: str, truths: Truths, samples: Sequence[Sample]) -> TruthColumns:
    """Truths of all images as arrays.

    Raises:
        DataError: some are damaged, or do not fit their images.
    """
    items, problems = truths.read(samples)
    if problems:
        total = f"\n({len(problems)} problems in all)" if len(problems) > MOST_NAMED else ""
        raise DataError(
            "\n".join(problems[:MOST_NAMED]) + total + f"\nmend the annotations, or extract without {name}: --truths none"
        )
    return segment_columns(items) if name == "segmentation" else instance_columns(items)  # type: ignore[arg-type]
