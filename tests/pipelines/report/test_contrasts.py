"""Differences between heads, with intervals and corrected p."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from pipelines.report.collect import Folders, collect
from pipelines.report.contrasts import holm, table
from pipelines.report.estimate import estimate_of
from tests.pipelines.report.written import write_correct, write_probe

N = 1000


def test_p_is_corrected_as_holm_does() -> None:
    """By hand: 3 · 0.01, then 2 · 0.02 and 1 · 0.03, of which none is below the one before."""
    assert holm([0.03, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([None]) == [None]


def test_rows_are_what_was_measured(tmp_path: Path) -> None:
    for head, top1 in (("cls", 60.0), ("abmilp", 66.0), ("average", 60.1), ("ep", 50.0)):
        folder = write_probe(tmp_path, "mae", head, top1)
        if head != "ep":
            write_correct(folder, (np.arange(N) + 0.5) / N < top1 / 100 + np.array([[-0.001], [0.0], [0.001]]))
    probes = collect(Folders(tmp_path, tmp_path / "none")).probes
    pairs = [("abmilp", "cls"), ("cls", "abmilp"), ("average", "cls"), ("ep", "cls")]
    result = table("gains", "Gains", ("Encoder", "Over"), [(("mae", b), probes["mae", a], probes["mae", b]) for a, b in pairs])
    assert result is not None
    assert [c.name for c in result.columns] == ["encoder", "over", "points", "points_interval", "p_holm", "verdict"]
    assert [row.cells[-1].text for row in result.rows] == ["ahead", "behind", "not shown", "not shown"]
    assert [row.cells[3].text == "–" for row in result.rows] == [False, False, False, True]  # of `ep` no images are known
    difference = estimate_of(probes["mae", "average"]).minus(estimate_of(probes["mae", "cls"]))
    assert difference.error is not None
    error, degrees = difference.error
    assert difference.p == pytest.approx(2 * t.sf(difference.mean / error, degrees))
    assert result.rows[2].cells[4].value == pytest.approx(difference.p)  # the largest is as it was
    assert result.rows[0].cells[4].value < 0.001
    assert table("none", "None", ("Encoder",), []) is None
    untested = table("gains", "Gains", ("Over",), [(("cls",), probes["mae", "ep"], probes["mae", "cls"])])
    assert untested is not None
    assert "p_holm" not in {column.name for column in untested.columns}
