"""Depth and surface normals of pixels, as a linear head on patch tokens predicts them."""

from collections.abc import Mapping

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, Text
from pipelines.report.dense import trained_first
from pipelines.report.sections.geometry import cell_of
from pipelines.report.tables import cells, each, encoders, numbers, table, texts

ABOUT = (
    "A linear head on frozen patch tokens predicts values of pixels. Each measure is the mean over test images of what is "
    "measured at an image's pixels that have a truth and are shown. Baseline: the mean of the training pixels, everywhere."
)
BRACKETS = "Brackets: 95 % over test images and seeds. Beyond: outside of the range of depths, or of the view."
NOTES = {
    "depth": "RMSE in metres; AbsRel: mean relative error; SI log: 100 times the deviation of the logarithms' difference; "
    f"δ: percent of pixels within a factor of 1.25, 1.25², 1.25³; aligned: after each image's best scale and shift. {BRACKETS}",
    "normals": f"Angles between predicted and true normals in degrees, and percent of pixels within some. {BRACKETS}",
}
# Measures of a task: name -> title and digits.
MEASURES: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "depth": {
        "rmse": ("RMSE", 3),
        "abs_rel": ("AbsRel", 3),
        "log10": ("log10", 3),
        "si_log": ("SI log", 1),
        "delta1": ("δ1", 1),
        "delta2": ("δ2", 1),
        "delta3": ("δ3", 1),
        "aligned_rmse": ("RMSE, aligned", 3),
        "aligned_delta1": ("δ1, aligned", 1),
    },
    "normals": {
        "mean_angle": ("Mean", 1),
        "median_angle": ("Median", 1),
        "rmse_angle": ("RMSE", 1),
        "within_11.25": ("11.25°", 1),
        "within_22.5": ("22.5°", 1),
        "within_30": ("30°", 1),
    },
}


def section(inputs: Inputs) -> Section | None:
    """None where `beyondcls depth` was not run."""
    kept = tuple(of_task for task in MEASURES if (of_task := _table(inputs, task)).rows)
    return Section("depth", "Depth and surface normals", (Text(ABOUT), *kept)) if kept else None


def _table(inputs: Inputs, task: str) -> Table:
    measures = MEASURES[task]
    rows = [
        (dataset, one, protocol)
        for dataset, of_encoders in inputs.depth.items()
        for one in trained_first(of_encoders.values())
        for protocol in (one.protocols if one.task == task else ())
    ]
    return table(
        task,
        {"depth": "Depth of pixels", "normals": "Normals of pixels"}[task],
        NOTES[task],
        rows,
        texts("dataset", "Data set", lambda row: row[0]),
        encoders(lambda row: row[1]),
        texts("head", "Head", lambda row: row[2], lambda name: {"mean": "mean, no image"}.get(name, name)),
        numbers("block", "Block", lambda row: row[1].block, 0),
        each(
            measures,
            lambda name: cells(
                name.replace(".", "_"),
                measures[name][0],
                lambda row: cell_of(row[1].protocols[row[2]].get(name), measures[name][1], row[1].encoder),
            ),
        ),
        numbers("images", "Images", lambda row: row[1].n_test, 0),
        numbers("without", "Without a truth", lambda row: row[1].n_without["test"], 0),
        numbers("missing", "Pixels missing", lambda row: row[1].pixels["test"]["missing"], 0),
        numbers("beyond", "Beyond", lambda row: sum(row[1].pixels["test"][name] for name in ("beyond", "outside")), 0),
    )
