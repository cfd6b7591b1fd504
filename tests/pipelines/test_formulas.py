"""Names of others in the .csv files that commands write: no spreadsheet computes them, and they are read back as they were."""

import csv
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pipelines.predictions.images import TABLE, Prediction, kept
from pipelines.report.dense import class_scores
from probe.segmentation.results import _write_confusions, _write_per_class

NAMES = ("=HYPERLINK(1)", "-2+3", "@x", "'=1", "-0.5", "car", "\t=1")


def test_classes_of_a_segmentation(tmp_path: Path) -> None:
    n = len(NAMES)
    counts = SimpleNamespace(counts=np.arange(n))
    sets = SimpleNamespace(classes=NAMES, learnt=counts, tested=counts)
    confusion = SimpleNamespace(iou=np.full(n, math.nan), counts=np.eye(n, dtype=int))
    result = SimpleNamespace(outcomes={"linear": SimpleNamespace(seeds=[0], measured=[{"grid": confusion}])})
    _write_per_class(tmp_path / "per_class.csv", sets, result)  # type: ignore[arg-type]
    _write_confusions(tmp_path / "confusion.csv", sets, result)  # type: ignore[arg-type]
    assert list(class_scores(tmp_path / "per_class.csv")) == list(NAMES)
    for file in tmp_path.iterdir():
        with file.open(newline="") as source:
            assert not [cell for row in csv.reader(source) for cell in row if cell in NAMES and cell not in ("-0.5", "car")]


def test_images_of_predictions(tmp_path: Path) -> None:
    class Shown:
        def to_rows(self) -> list[dict[str, object]]:
            return [{"class": "=1+1", "probability": -0.5}]

    predictor = SimpleNamespace(columns=("class", "probability"), keep=lambda *_: {}, finish=lambda _: None)
    with kept(predictor, tmp_path) as keep:  # type: ignore[arg-type]
        keep("0", Prediction(Path("=cmd.png"), Shown()))  # type: ignore[arg-type]
        keep("1", Prediction(Path("-a.png"), problem="+1 is no image"))
    assert (tmp_path / TABLE).read_text().splitlines()[1:] == ["'=cmd.png,'=1+1,-0.5,", "'-a.png,,,'+1 is no image"]
