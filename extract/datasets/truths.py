"""Truths of dense tasks that a data set has: label maps and instances, read when they are asked for."""

from collections.abc import Sequence
from typing import Protocol

from extract.datasets.pixels import Pixels
from extract.datasets.sample import DataError, Sample
from extract.datasets.turning import turned_items
from store.truths.reading import Instance, Segment, TruthColumns, instance_columns, segment_columns

MOST_NAMED = 10  # problems in a message


class Truths(Protocol):
    """Truths of one kind.

    Attributes:
        classes: names in order of labels.
    """

    classes: Sequence[str]

    def read(self, samples: Sequence[Sample]) -> tuple[Sequence[Sequence[Segment] | Sequence[Instance]], list[str]]:
        """Segments or instances of each image, none of those with a problem; and what is wrong with others, a line each."""


def columns_of(name: str, truths: Truths, samples: Sequence[Sample], pixels: Pixels) -> TruthColumns:
    """Truths of all images, in pixels of the images as they are decoded, as arrays.

    Raises:
        DataError: some are damaged, or do not fit their images.
    """
    items, problems = truths.read(samples)
    if problems:
        total = f"\n({len(problems)} problems in all)" if len(problems) > MOST_NAMED else ""
        raise DataError(
            "\n".join(problems[:MOST_NAMED]) + total + f"\nmend the annotations, or extract without {name}: --truths none"
        )
    if pixels.orientation == "exif":
        items = [turned_items(one, sample, pixels) for one, sample in zip(items, samples, strict=True)]
    return segment_columns(items) if name == "segmentation" else instance_columns(items)  # type: ignore[arg-type]
