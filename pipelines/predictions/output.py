"""What `beyondcls predict` writes: a table of predictions with what a predictor keeps beside it, and overlays."""

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.predictions.images import Prediction
from pipelines.predictions.predictor import Predictor
from store.shown import csv_cell

TABLE = "predictions.csv"


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
            image, result = {"image": csv_cell(str(prediction.file))}, prediction.result
            if result is None:
                writer.writerow({**image, "error": csv_cell(prediction.problem)})
                return {}
            writer.writerows(image | {name: csv_cell(value) for name, value in row.items()} for row in result.to_rows())
            return predictor.keep(folder, number, prediction.file, result)

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
