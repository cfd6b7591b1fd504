"""A prediction for an image, and what makes predictions: the interface that each task implements."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

DRAWN = 224  # pixels of the shorter side of an overlay, at least


class Predicted(ABC):
    """What is predicted for one image."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"classes": self.to_rows()}

    @abstractmethod
    def to_lines(self) -> list[str]:
        """Text for a terminal."""

    @abstractmethod
    def to_rows(self) -> list[dict[str, Any]]:
        """Rows of predictions.csv, without the image."""

    @abstractmethod
    def pictures(self) -> dict[str, Image.Image]:
        """Overlays by the last word of their file names."""


class Predictor(ABC):
    """Predicts images in batches.

    Attributes:
        columns: of predictions.csv, without the image.
        notes: what there is to say of overlays before they are drawn.
        model: what was trained, on its `encoder`.
    """

    columns: ClassVar[tuple[str, ...]]
    model: Any

    @property
    def notes(self) -> list[str]:
        return []

    @abstractmethod
    def predict(self, images: Sequence[Image.Image]) -> Iterator[Predicted | str]:
        """A result for each image, in order, or what is wrong with it."""

    def keep(self, folder: Path, number: str, file: Path, result: Predicted) -> dict[str, str]:
        """Write what is kept of an image in addition to its rows of predictions.csv, if anything.

        Args:
            number: of the image, with as many digits as that of any other.

        Returns:
            The files that were written, by what they are.
        """
        return {}

    def finish(self, folder: Path) -> tuple[Path, ...]:
        """Write what is kept of all images together, if anything; returns the files."""
        return ()


def enlarge(picture: Image.Image) -> Image.Image:
    """The picture, as large as overlays are at least."""
    scale = max(1.0, DRAWN / min(picture.size))
    return picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
