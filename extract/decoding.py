"""Images as the encoder takes them, decoded on threads while the batch before is computed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

from extract.datasets import DataError, ImageSet
from extract.layouts import view_of
from extract.views import Crop, Views


@dataclass(frozen=True)
class Unit:
    """Rows of the set, and the names of their arrays to compute; annotations are not among them."""

    number: int
    rows: Sequence[int]
    names: Sequence[str]

    @property
    def views(self) -> list[int]:
        """Views of which it has arrays."""
        return _views_of(self.names)

    @property
    def encoded_views(self) -> list[int]:
        """Views of which it has features; of others it has only the crop."""
        return _views_of(name for name in self.names if not name.startswith("images/"))


def _views_of(names: Iterable[str]) -> list[int]:
    return sorted({view for name in names if (view := view_of(name)) is not None})


@dataclass(frozen=True)
class Decoded:
    """An image ready for the encoder, or what was wrong with it."""

    views: dict[int, tuple[Tensor, Crop]]
    size: tuple[int, int]  # height and width of the original, pixels
    problem: str | None = None


@dataclass(frozen=True)
class Decoding:
    """Decodes images of a set and cuts their views."""

    images: ImageSet
    views: Views
    threads: ThreadPoolExecutor

    def batches(self, units: Iterable[Unit], size: Callable[[], int]) -> Iterator[tuple[Unit, int, list[Decoded]]]:
        """Batches of units, each with its unit and the position of its first image in that; `size`: images of the next."""
        ahead: tuple[Unit, int, list[Future[Decoded]]] | None = None
        for unit in units:
            n = size()
            for first in range(0, len(unit.rows), n):
                rows, views = unit.rows[first : first + n], unit.views
                decoding = [self.threads.submit(self.decode, row, views) for row in rows]
                if ahead is not None:
                    yield *ahead[:2], [future.result() for future in ahead[2]]
                ahead = unit, first, decoding
        if ahead is not None:
            yield *ahead[:2], [future.result() for future in ahead[2]]

    def decode(self, row: int, views: Sequence[int]) -> Decoded:
        """An image and its views."""
        sample = self.images.samples[row]
        if sample.problem:
            return Decoded({}, (0, 0), f"{sample}: {sample.problem}")
        try:
            image = self.images.image(row)
        except DataError as error:
            return Decoded({}, (0, 0), str(error))
        return Decoded({view: self.views.cut(image, sample.id, view) for view in views}, (image.height, image.width))
