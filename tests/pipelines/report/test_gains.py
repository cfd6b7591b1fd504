"""What AbMILP gains on each encoder, and what the numbers rest on."""

from pathlib import Path
from typing import Any

import numpy as np

from pipelines.report.collect import Folders, collect
from pipelines.report.estimate import Probes
from pipelines.report.gains import INTERVALS, MISSING, OF_MAP, basis, contrasts_of_depth, gains, table
from tests.pipelines.report.written import several_labels, write_correct, write_probe

N = 1000


def write(root: Path, encoder: str, cls: float, abmilp: float, average: float | None = None, images: str = "") -> None:
    """Three heads of one encoder; with `images`, known image by image: each head is right on the first ones."""
    for head, top1 in (("cls", cls), ("abmilp", abmilp), ("average", average)):
        if top1 is not None:
            folder = write_probe(root, encoder, head, top1)
            if images:
                rates = top1 / 100 + np.array([[-0.001], [0.0], [0.001]])
                write_correct(folder, (np.arange(N) + 0.5) / N < rates, images)


def probes_of(root: Path) -> Probes:
    return collect(Folders(root, root / "none")).probes


def test_what_the_numbers_rest_on_is_said(tmp_path: Path) -> None:
    write(tmp_path / "without", "mae", 40, 45)
    write(tmp_path / "with", "mae", 40, 45, images="i")
    for head, value in (("cls", 40.0), ("abmilp", 45.0)):
        several_labels(write_probe(tmp_path / "map", "mae", head, value))
    for name, sentence in (("without", MISSING), ("with", INTERVALS), ("map", OF_MAP)):
        assert sentence in basis(probes_of(tmp_path / name))


def test_encoders_that_differ_in_stochastic_depth_alone_are_subtracted(tmp_path: Path) -> None:
    """Not those that were measured on other features, or trained on another number of crops or from another start."""
    crops: dict[str, Any] = {
        "plain": ("same", {"n_crops": 4}),
        "dropped": ("same", {"n_crops": 4, "drop_path": 0.1}),
        "few": ("same", {"n_crops": 2, "drop_path": 0.1}),
        "other": ("others", {"n_crops": 4, "drop_path": 0.1}),
        "small": ("same", {"n_crops": 4, "drop_path": 0.1}),
        "none": ("same", {"n_crops": 0}),
    }
    for encoder, (test, augmentation) in crops.items():
        for head, top1 in (("cls", 60), ("abmilp", 66 + 2 * ("drop_path" in augmentation))):
            features = {"training": encoder, "test": test}
            init = "small" if encoder == "small" else "normal"
            folder = write_probe(tmp_path, encoder, head, top1, features=features, augmentation=augmentation, init=init)
            write_correct(folder, (np.arange(N) + 0.5) / N < top1 / 100 + np.array([[-0.001], [0.0], [0.001]]))
    contrasts = contrasts_of_depth(probes_of(tmp_path))
    assert contrasts == [("dropped − plain", "dropped", "plain")]
    gains_table = table(probes_of(tmp_path), contrasts)
    assert gains_table is not None
    (row,) = (row for row in gains_table.rows if row.cells[0].text == "dropped − plain")
    points = gains(probes_of(tmp_path))["dropped", "cls"].minus(gains(probes_of(tmp_path))["plain", "cls"]).points
    assert [cell.text for cell in row.cells[1:3]] == ["+2.0 ± 0.2", points.bounds()]
    assert points.interval is not None


def test_the_table_has_encoders_and_contrasts(tmp_path: Path) -> None:
    for encoder, heads in (("mae", (60, 66, 62)), ("dino", (70, 71, 72)), ("random", (40, 46, 41))):
        write(tmp_path, encoder, *heads, images="i")
    pairs = [("mae", "dino"), ("mae", "random")]
    gains_table = table(probes_of(tmp_path), [(f"{one} − {other}", one, other) for one, other in pairs])
    assert gains_table is not None
    shown = [[row.group, *(cell.text for cell in row.cells)] for row in gains_table.rows]
    assert [row[:2] for row in shown] == [
        [f"over {head}", name]
        for head in ("[cls]", "the average patch")
        for name in ("dino", "mae", "random", "mae − dino", "mae − random")
    ]
    of_mae = gains(probes_of(tmp_path))["mae", "cls"]
    assert of_mae.share is not None
    assert shown[1][2:] == ["+6.0 ± 0.1", of_mae.points.bounds(), "+15.0 ± 0.3", of_mae.share.bounds()]
    assert shown[4][2] == "0.0 ± 0.2"
    assert [row.muted for row in gains_table.rows[:5]] == [False, False, True, False, False]
    write_probe(tmp_path / "alone", "mae", "cls", 40.0)
    assert table(probes_of(tmp_path / "alone")) is None
