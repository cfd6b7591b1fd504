"""The images that are shown, what is predicted for each or wrong with it, and what `beyondcls predict` writes of that."""

import csv
import glob
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from extract.datasets.gathering import LeftOut, gather
from extract.datasets.pixels import IMAGE_EXTENSIONS, Pixels
from pipelines.live.pictures import open_picture
from store import BeyondClsError
from store.shown import csv_cell

TABLE = "predictions.csv"
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
    """Predicts images in batches: the interface that each task implements.

    Attributes:
        columns: of predictions.csv, without the image.
        model: what was trained, on its `encoder`.
    """

    columns: ClassVar[tuple[str, ...]]
    model: Any

    @abstractmethod
    def predict(self, images: Sequence[Image.Image]) -> Iterator[Predicted | str]:
        """A result for each image, in order, or what is wrong with it."""

    def keep(self, folder: Path, number: str, file: Path, result: Predicted) -> dict[str, str]:
        """Write what is kept of an image beside its rows of predictions.csv; returns the files by what they are.

        Args:
            number: of the image, with as many digits as that of any other.
        """
        return {}

    def finish(self, folder: Path) -> None:  # noqa: B027, most keep nothing
        """Write what is kept of all images together."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted for an image, or the problem with it."""

    file: Path
    result: Predicted | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"image": str(self.file), **({"error": self.problem} if self.result is None else self.result.to_dict())}

    def to_text(self) -> str:
        """Text for a terminal."""
        lines = [f"  not shown: {self.problem}"] if self.result is None else self.result.to_lines()
        return "\n".join(legible(line) for line in (str(self.file), *lines))


def find_images(
    arguments: Sequence[str], allow_left_out: bool = False, say: Callable[[str], None] = lambda note: None
) -> list[Path]:
    """Files in the order of the arguments, sorted within a folder or pattern; each once.

    Args:
        allow_left_out: as for `open_images`, of folders.
        say: is called with what is left out of a folder.

    Raises:
        BeyondClsError: nothing matches, no image does, or too many of a folder are left out.
    """
    files: dict[Path, None] = {}
    for argument in arguments:
        places = [argument] if Path(argument).exists() else sorted(glob.glob(argument, recursive=True))
        if not places:
            raise BeyondClsError(f"there is no image {argument!r}, nor any that it matches as a pattern")
        for place in map(Path, places):
            left_out = LeftOut()
            inside = [place / found.name for found in gather(place, left_out)] if place.is_dir() else [place]
            if not inside and str(place) == str(Path(argument)):
                kinds = ", ".join(f".{kind}" for kind in IMAGE_EXTENSIONS)
                beside = f"; left out: {left_out}" if left_out else ""
                raise BeyondClsError(f"the folder {argument!r} has no images; expected {kinds}{beside}")
            if not allow_left_out:
                left_out.check(str(place), len(inside))
            if left_out:
                say(f"note: {len(inside):,} images of {place} are taken; left out: {left_out}")
            files |= dict.fromkeys(inside)
    if not files:
        raise BeyondClsError(f"there are no images in what {' '.join(map(repr, arguments))} matches")
    return list(files)


def predictions(predictor: Predictor, files: Sequence[Path], batch_size: int = 32) -> Iterator[Prediction]:
    """A prediction for each file, in order."""
    for begin in range(0, len(files), batch_size):
        batch = files[begin : begin + batch_size]
        opened = [_open_picture(file, predictor.model.encoder.pixels) for file in batch]
        good = [image for image in opened if not isinstance(image, str)]
        results = iter(predictor.predict(good) if good else ())
        for file, image in zip(batch, opened, strict=True):
            if isinstance(image, str):
                yield Prediction(file, problem=image)
                continue
            result = next(results)
            yield Prediction(file, problem=f"{file}: {result}") if isinstance(result, str) else Prediction(file, result)


def _open_picture(file: Path, pixels: Pixels) -> Image.Image | str:
    """The picture, or the problem with it."""
    try:
        return open_picture(file, pixels)
    except BeyondClsError as error:
        return str(error)


def legible(text: str) -> str:
    """Text without control characters: file names may come from anybody."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


@contextmanager
def kept(predictor: Predictor, folder: Path | None) -> Iterator[Callable[[str, Prediction], dict[str, str]]]:
    """A function that keeps the prediction of an image, by its number, in a folder, and returns the files of that image.

    predictions.csv has a row for each class or object; a row with an error for an image that was not shown. Nothing is kept
    without a folder.
    """
    if folder is None:
        yield lambda number, prediction: {}
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as target:
        writer = csv.DictWriter(target, ["image", *predictor.columns, "error"], lineterminator="\n")
        writer.writeheader()

        def keep(number: str, prediction: Prediction) -> dict[str, str]:
            result, row = prediction.result, {"image": str(prediction.file)}
            rows = [{**row, "error": prediction.problem}] if result is None else [row | entry for entry in result.to_rows()]
            writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
            return {} if result is None else predictor.keep(folder, number, prediction.file, result)

        yield keep
    predictor.finish(folder)


def draw(prediction: Prediction, folder: Path, number: str) -> dict[str, str]:
    """Write the pictures of a prediction; returns the files by what they show."""
    written = {}
    for name, picture in (prediction.result.pictures() if prediction.result else {}).items():
        file = folder / f"{number}-{prediction.file.stem}-{name}.png"
        picture.save(file)
        written[name] = str(file)
    return written


def enlarge(picture: Image.Image) -> Image.Image:
    """The picture, as large as overlays are at least."""
    scale = max(1.0, DRAWN / min(picture.size))
    return picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
