import csv
import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.report.collect import Inputs, collect
from pipelines.report.published import TABLE_1
from pipelines.report.tables import COLUMNS, accuracy_rows, signed, to_csv, to_markdown, to_terminal
from tests.pipelines.report.written import ACCURACY, write_all, write_probe


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    paths = write_all(tmp_path)
    return collect(paths["probes"], paths["attention"])


def test_csv_holds_the_numbers_of_metrics_exactly(inputs: Inputs, tmp_path: Path):
    rows = list(csv.DictReader(io.StringIO(to_csv(inputs))))
    assert tuple(rows[0]) == COLUMNS
    assert [(r["encoder"], r["head"]) for r in rows] == [(e, h) for e in ACCURACY for h in ("cls", "average", "abmilp")]
    for row in rows:
        metrics = json.loads((tmp_path / "probes" / row["encoder"] / row["head"] / "metrics.json").read_text())
        for name in ("top1", "top5"):
            assert (float(row[name]), float(row[f"{name}_std"])) == (metrics[name]["mean"], metrics[name]["std"])
        assert int(row["n_seeds"]) == 3
        if "entropy" in metrics:
            assert (float(row["entropy"]), float(row["ln_T"])) == (metrics["entropy"]["mean"], math.log(4))
        else:
            assert (row["entropy"], row["ln_T"]) == ("", "")


def test_markdown_has_a_row_per_probe_and_escapes_names(tmp_path: Path):
    write_probe(tmp_path, "a|b<i>", "cls", 12.3456)
    lines = to_markdown(collect(tmp_path, tmp_path / "none")).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith(
        "| a\\|b&lt;i> | cls | 12.35 | 0.50 | 52.35 | 0.50 |  |  | 3 | nothing | `beyondcls probe --head cls "
    )


def test_rows_mark_the_best_and_give_the_gain(inputs: Inputs):
    mae, random = accuracy_rows(inputs)
    assert [cell.text for cell in mae.cells if cell] == ["46.2 ± 0.5", "48.5 ± 0.5", "51.5 ± 0.5"]
    assert [cell.best for cell in mae.cells if cell] == [False, False, True]
    assert mae.gain == "+5.2 ± 0.7"
    assert (mae.entropy, mae.ceiling) == ("1.10 ± 0.50", "1.39")
    assert (mae.random, random.random) == (False, True)


def test_ties_as_displayed_are_both_best(tmp_path: Path):
    write_probe(tmp_path, "mae", "cls", 40.01)
    write_probe(tmp_path, "mae", "abmilp", 39.99)
    (row,) = accuracy_rows(collect(tmp_path, tmp_path / "none"))
    assert [cell.best for cell in row.cells if cell] == [True, True]
    assert row.gain == "0.0 ± 0.7"


def test_one_seed_has_no_spread_and_a_missing_head_a_dash(tmp_path: Path):
    write_probe(tmp_path, "mae", "cls", 40.0, seeds=(0,))
    write_probe(tmp_path, "other", "abmilp", 40.0)
    mae, other = accuracy_rows(collect(tmp_path, tmp_path / "none"))
    assert mae.cells[0] is not None
    assert mae.cells[0].text == "40.0"
    assert mae.cells[1] is None
    assert (mae.gain, other.gain, mae.ceiling) == ("–", "–", "–")


def test_terminal_shows_heads_as_text_and_the_random_twin(inputs: Inputs):
    console = Console(width=80, file=io.StringIO())
    console.print(to_terminal(inputs))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("[cls]", "AbMILP", "51.5 ± 0.5", "+5.2 ± 0.7", "random twin", "36.5 ± 0.5"):
        assert expected in shown


@pytest.mark.parametrize(("value", "text"), [(2.14, "+2.1"), (-0.44, "−0.4"), (-0.04, "0.0"), (0.0, "0.0")])
def test_signed(value: float, text: str):
    assert signed(value) == text


def test_published_gains():
    gains = {(row.encoder, row.vit): row.gain for row in TABLE_1}
    assert len(TABLE_1) == 13
    assert gains["MAE", "ViT-B"] == 3.8
    assert gains["DINO", "ViT-B"] == -1.9
    assert gains["I-JEPA", "ViT-H"] is None


def test_what_was_selected_on_what_and_the_command_stand_beside_the_numbers(tmp_path: Path):
    grid = {"on": "10 % of the training images, stratified", "by": "top1", "n_images": 1500, "candidates": [], "note": ""}
    write_probe(tmp_path, "mae", "cls", 40.0, selected={"base_lr": 0.03, "weight_decay": 0.0, **grid})
    write_probe(tmp_path, "mae", "abmilp", 41.0)
    chosen, fixed = csv.DictReader(io.StringIO(to_csv(collect(tmp_path, tmp_path / "none"))))
    expected = "base_lr 0.03, weight_decay 0 by top1 on 10 % of the training images, stratified (1,500 images)"
    assert (chosen["selected"], fixed["selected"]) == (expected, "nothing")
    assert fixed["command"] == "beyondcls probe --head abmilp --out probes/<mae>"
