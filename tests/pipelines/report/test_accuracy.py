import csv
import io
import json
import math
from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Table
from pipelines.report.formats.csv_table import to_csv
from pipelines.report.remarks import SHARED_DRAW, SHARED_ORDER
from pipelines.report.sections.accuracy import every_probe, scores, section
from pipelines.report.tables import file_names
from probe.result_files import write_result
from tests.pipelines.report.written import ACCURACY, shown, words, write_all, write_probe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def inputs(folder: Path) -> Inputs:
    paths = write_all(folder)
    return collect(Folders(paths["probes"], paths["attention"]))


def test_rows_mark_the_best_and_give_the_gain(inputs: Inputs):
    mae, random = scores(inputs).rows
    titles = ["Encoder", "[cls]", "average", "AbMILP", "AbMILP − [cls]", "Entropy", "ln T", "Effective patches"]
    assert [column.title for column in scores(inputs).columns] == titles
    numbers = ["46.2 ± 0.5", "48.5 ± 0.5", "51.5 ± 0.5", "+5.2 ± 0.7", "1.10 ± 0.50", "1.39", "3.0"]
    assert shown(scores(inputs))[0] == ["mae", *numbers]
    assert [cell.best for cell in mae.cells] == [False, False, False, True, False, False, False, False]
    assert (mae.muted, random.muted, mae.cells[0].tag, random.cells[0].tag) == (False, True, "", "random twin")
    assert (mae.cells[4].value, mae.cells[4].std) == (5.25, math.hypot(0.5, 0.5))


def test_dashes_have_their_reasons(tmp_path: Path):
    for encoder in ("ijepa", "capi", "mae"):
        write_probe(tmp_path, encoder, "abmilp", 40.0)
    write_probe(tmp_path, "dino", "cls", 40.0)
    for encoder in ("ijepa", "capi"):
        (tmp_path / encoder / "cls").mkdir()
        write_result(tmp_path / encoder / "cls/metrics.json", {"absent": ["cls"]})
    table = scores(collect(Folders(tmp_path)))
    rows = {name: cells for name, *cells in shown(table, slice(4))}
    assert (rows["dino"], rows["mae"]) == (["40.0 ± 0.5", "–", "–"], ["–", "40.0 ± 0.5", "–"])
    reasons = ("capi, ijepa: no cls tokens, which [cls] reads", "mae: not probed with [cls]")
    assert f"A dash: {reasons[0]}; dino: not probed with AbMILP; {reasons[1]}." in table.note


def read(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def test_every_probe_holds_the_numbers_of_metrics_exactly(inputs: Inputs, folder: Path):
    rows = read(every_probe(inputs))
    assert [(r["encoder"], r["head"]) for r in rows] == [(e, h) for e in ACCURACY for h in ("cls", "average", "abmilp")]
    for row in rows:
        metrics = json.loads((folder / "probes" / row["encoder"] / row["head"] / "description.json").read_text())
        for name in ("top1", "top5"):
            assert (float(row[name]), float(row[f"{name}_std"])) == (metrics[name]["mean"], metrics[name]["std"])
        entropy = (row["entropy"], row["ln_T"], row["effective_patches"])
        assert entropy == (("1.1", str(math.log(4)), str(math.exp(1.1))) if row["head"] == "abmilp" else ("", "", ""))
        assert "train_top1" not in row


def test_what_was_selected_on_what_and_accuracy_in_training_are_beside_the_numbers(tmp_path: Path):
    grid = {"on": "10 % of the training images, stratified", "by": "top1", "n_images": 1500, "candidates": [], "note": ""}
    training = {"mean": 99.0, "std": 0.5, "values": [98.5, 99.0, 99.5]}
    selected = {"base_lr": 0.03, "weight_decay": 0.0, **grid}
    write_probe(tmp_path, "mae", "cls", 40.0, selected=selected, train_top1=training)
    write_probe(tmp_path, "mae", "abmilp", 41.0)
    chosen, fixed = read(every_probe(collect(Folders(tmp_path))))
    expected = "base_lr 0.03, weight_decay 0 by top1 on 10 % of the training images, stratified (1,500 images)"
    assert (chosen["selected"], fixed["selected"]) == (expected, "nothing")
    assert (chosen["train_top1"], chosen["train_top1_std"], fixed["train_top1"]) == ("99.0", "0.5", "")
    assert fixed["command"] == "beyondcls probe --head abmilp --out probes/<mae>"


def test_each_note_appears_once_below_the_main_table_with_its_heads(tmp_path: Path):
    """So does what the ± of several seeds leaves out: what all of them have in common."""
    for encoder in ("mae", "dino"):
        for head in ("cls", "abmilp"):
            notes = ["all crops are alike", *(["slow"] if head == "abmilp" else [])]
            shared = {"recipe": {"order": "shared"}} if head == "cls" else {"subset": {"k_shot": 5, "seed": 0}}
            write_probe(tmp_path, encoder, head, 40.0, notes=notes, **shared)
    one = {"recipe": {"order": "shared"}, "subset": {"seed": "own"}, "notes": ["all crops are alike"]}
    write_probe(tmp_path, "mae", "average", 40.0, seeds=(0,), **one)  # it has no spread
    _, *items = words(section(collect(Folders(tmp_path))), "notice")
    of_cls, of_abmilp = ([f"{head} on {encoder}" for encoder in ("dino", "mae")] for head in ("[cls]", "AbMILP"))
    assert set(items) == {
        "all crops are alike",
        f"{', '.join(of_abmilp)}: slow",
        f"{', '.join(of_cls)}: {SHARED_ORDER}",
        f"{', '.join(of_abmilp)}: {SHARED_DRAW}",
    }
    assert len(items) == 4


def test_names_of_files_differ():
    names = ["MAE_b", "mae-b", "<b>", "b", "é"]
    by_name = file_names("x", names)
    assert list(by_name) == names
    assert len(set(by_name.values())) == len(names)
    assert (by_name["MAE_b"], by_name["<b>"], by_name["é"]) == ("x-mae-b", "x-b", "x")
