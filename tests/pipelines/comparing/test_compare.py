"""`beyondcls compare`: folders of results side by side."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from pipelines.comparing.differences import Compared, compare_results, differences_in_descriptions
from pipelines.report.rows import results_in
from probe.result_files import read_result, write_result
from tests.pipelines.report import everything as results
from tests.pipelines.report.written import write_correct, write_probe

N = 400


def described(folder: Path, **changes: object) -> Path:
    """A head as this version writes it: what describes it, with `changes`, beside its measures."""
    write_result(folder / "metrics.json", read_result(folder / "metrics.json") | changes)
    return folder


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of probes: of the second, AbMILP is better on the same images, [cls] is equal; each has a head of its own."""
    random = np.random.default_rng(0)
    right = random.random((2, N)) < 0.6
    better = right | (random.random((2, N)) < 0.1)
    a, b = tmp_path / "a", tmp_path / "b"
    for root, correct, torch in ((a, right, "2.6.0"), (b, better, "2.7.0")):
        versions = {"versions": {"torch": torch, "numpy": "2.1"}}
        described(write_correct(write_probe(root / "birds", "mae", "abmilp", 50.0), correct), **versions)
        described(write_correct(write_probe(root / "birds", "mae", "cls", 50.0), right), **versions)
    described(write_probe(a / "birds", "mae", "old", 40.0))
    described(write_probe(b / "birds", "mae", "new", 41.0))
    return a, b


def test_other_measures_have_intervals_where_groups_of_images_were_left_out(tmp_path: Path):
    """B is 1 better with each of four groups left out, so the difference does not vary; with other images nothing is paired."""
    rows: dict[str, Compared] = {}
    for images in ("other", "same"):
        for side, more in (("a", 0.0), ("b", 1.0)):
            without = [29 + more, 30.5 + more, 30 + more, 30.5 + more]
            ap = {"mean": 30 + more, "std": 0.0, "values": [30 + more] * 2, "without": without}
            data = "same" if side == "a" else images
            results.write_detection(tmp_path / images / side / "detection/coco", "mae", data=data, box={"ap": ap})
        (rows[images],) = compare_results(*(results_in(tmp_path / images / side) for side in ("a", "b")))
    of_same, of_other = rows["same"].difference, rows["other"].difference
    assert of_same is not None
    assert of_same.interval == (1.0, 1.0)
    assert of_other is not None
    assert of_other.sign == 0


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as source:
        return list(csv.DictReader(source))


def test_what_differs_is_shown_and_equal_results_are_counted(beyondcls, sides, tmp_path):
    said = beyondcls("compare", *sides, "--out", tmp_path / "out")
    assert "1 of 4 results are equal, 1 differ" in said
    assert f"1 is only in {sides[0]} 1 is only in {sides[1]}" in said
    rows = {row["head"]: row for row in table(tmp_path / "out/differences.csv")}
    assert list(rows) == ["abmilp", "new", "old"]
    assert (rows["old"]["a"], rows["old"]["b"], rows["old"]["difference"]) == ("40.0", "", "")
    assert (rows["new"]["a"], rows["new"]["b"]) == ("", "41.0")
    shown = rows["abmilp"]
    assert (shown["dataset"], shown["encoder"], shown["measure"]) == ("birds", "mae", "top1")
    assert float(shown["difference"]) == pytest.approx(float(shown["b"]) - float(shown["a"]))
    for suffix in ("csv", "md", "tex"):
        assert "abmilp" in (tmp_path / f"out/differences.{suffix}").read_text()


def of_abmilp(sides: tuple[Path, Path]) -> Compared:
    (row,) = [row for row in compare_results(*map(results_in, sides)) if row.names[-1] == "abmilp" and row.measure == "top1"]
    return row


def test_the_interval_is_of_the_paired_difference(sides):
    """By the same images, so it is narrower than of others; its formula is tested where it is."""
    correct = [np.load(side / "birds/mae/abmilp/trained/correct.npz")["correct"].mean(0) for side in sides]
    paired = of_abmilp(sides).difference
    assert paired.mean == pytest.approx(100 * (correct[1] - correct[0]).mean())
    described(sides[1] / "birds/mae/abmilp", test_images="others")
    assert of_abmilp(sides).difference.error[0] > paired.error[0]


@pytest.mark.parametrize("recorded", [True, False])
def test_without_images_the_spread_over_seeds_is_all(recorded: bool, sides):
    folder = sides[1] / "birds/mae/abmilp"
    (folder / "trained/correct.npz").unlink() if recorded else described(folder, test_images=None)
    row = of_abmilp(sides)
    assert row.difference.interval is None
    assert row.difference.std == pytest.approx(np.hypot(row.a.std, row.b.std))


def test_all_shows_equal_results_and_every_measure(beyondcls, sides, tmp_path):
    beyondcls("compare", *sides, "--all", "--out", tmp_path)
    rows = {(row["head"], row["measure"]): row for row in table(tmp_path / "differences.csv")}
    assert {measure for head, measure in rows if head == "abmilp"} == {"top1", "top5", "entropy"}
    equal = rows["cls", "top1"]
    assert (equal["a"], equal["difference"], equal["interval"]) == (equal["b"], "0.0", "")


def test_what_differs_in_how_they_were_made(beyondcls, sides, tmp_path):
    head = sides[1] / "birds/mae/abmilp"
    recipe = read_result(head / "metrics.json")["recipe"] | {"epochs": 3}
    features = {"training": "another", "test": "test-mae"}
    described(
        head, recipe=recipe, features=features, command="another", notes=["x"], options={"depth": 2, "activation": "gelu"}
    )
    said = beyondcls("compare", *sides, "--out", tmp_path)
    found = {row["name"]: (row["a"], row["b"], row["results"]) for row in table(tmp_path / "descriptions.csv")}
    one = "birds/mae/abmilp"
    assert found == {
        "versions.torch": ('"2.6.0"', '"2.7.0"', f"{one} birds/mae/cls"),
        "features.training": ('"training-mae"', '"another"', one),
        "options.activation": ("", '"gelu"', one),
        "options.depth": ("1", "2", one),
        "recipe.epochs": ("2", "3", one),
    }
    assert next(iter(found)) == "versions.torch"
    assert "2.6.0 │ 2.7.0 │ all 2" in said


def test_blocks_that_a_head_reads_are_compared_and_measures_by_block_are_not(tmp_path):
    """Both are lists under one name."""
    for root, block in (("a", 3), ("b", 5)):
        write_probe(tmp_path / root / "probes", "mae", "abmilp", 50.0, options={"blocks": [block]})
        results.write_norms(tmp_path / root / "norms", "mae", {block: 4.0})
    (found,) = differences_in_descriptions(*(results_in(tmp_path / root) for root in "ab"))
    assert (found.name, found.a, found.b) == ("options.blocks", "[3]", "[5]")


def write_project(root: Path, more: float) -> Path:
    """Heads, patches, blocks and a receipt."""
    described(write_probe(root / "probes/birds", "mae", "cls", 50.0 + more))
    write_probe(root / "studies/birds/selection", "mae", "norm", 40.0)
    results.write_segmentation(root / "segmentation/streets", "mae", {"knn": results.protocol(30.0 + more)})
    results.write_by_block(root / "blocks/birds", "mae", {("cls", "linear"): (10.0, 20.0 + more)})
    write_probe(root / "blocks/birds/mae", "heads", "cls-block1", 20.0 + more)
    (root / "receipts").mkdir()
    check = {"key": "k", "versions": {"timm": f"1.0.{20 + more:g}"}, "device": "cpu", "compared": []}
    (root / "receipts/mae-birds-train.check.json").write_text(json.dumps(check))
    return root


def test_projects_with_everything(beyondcls, tmp_path):
    a, b = (write_project(tmp_path / name, more) for name, more in (("one", 0.0), ("other", 2.0)))
    said = beyondcls("compare", a, b, "--out", tmp_path / "out")
    rows = table(tmp_path / "out/differences.csv")
    assert [(row["dataset"], row["head"], row["measure"], float(row["difference"])) for row in rows] == [
        ("birds", "cls", "top1", 2.0),
        ("blocks/birds", "cls, block 1, linear", "top1", 2.0),
        ("segmentation/streets", "knn", "miou_grid", 2.0),
    ]
    assert {row["encoder"] for row in rows} == {"mae"}
    assert "1 of 4 results are equal, 3 differ" in said
    (found,) = table(tmp_path / "out/descriptions.csv")
    assert (found["name"], found["a"], found["results"]) == ("extraction.versions.timm", '"1.0.20"', "receipts/mae-birds-train")


def test_a_project_with_a_folder_of_probes_and_a_head_with_a_head(beyondcls, tmp_path):
    project, probes = write_project(tmp_path / "project", 0.0), tmp_path / "elsewhere"
    write_probe(probes / "birds", "mae", "cls", 51.0)
    said = beyondcls("compare", project, probes)
    assert f"1 differ 3 are only in {project}" in said
    assert "birds │ mae │ cls │ top1 │ 50.00 ± 0.50 │ 51.00 ± 0.50 │ +1.00 ± 0.71 │ – " in said
    assert "−1.00 ± 0.71" in beyondcls("compare", probes / "birds/mae/cls", project / "probes/birds/mae/cls")


def test_heads_that_the_encoder_has_no_tokens_for_are_only_in_the_other(beyondcls, sides):
    (folder := sides[1] / "birds/mae/abmilp/trained/correct.npz").unlink()
    write_result(folder.parent.parent / "metrics.json", {"encoder": "mae", "absent": ["patch"]})
    assert f"2 are only in {sides[0]}" in beyondcls("compare", *sides)


def test_exit_code(command, sides):
    assert command("compare", *sides)[0] == 0
    assert command("compare", *sides, "--exit-code")[0] == 1
    assert command("compare", sides[0], sides[0], "--exit-code")[0] == 0


def test_what_cannot_be_compared_is_named(beyondcls, sides, tmp_path):
    (tmp_path / "empty").mkdir()
    for other, message in (
        (tmp_path / "empty", f"there are no results in '{tmp_path}/empty'"),
        (sides[1] / "birds", "no result in common: the first has birds/mae/abmilp and others, the second mae/abmilp"),
        (tmp_path / "nowhere", "and no commit of that name in this folder's git repository"),
    ):
        assert message in beyondcls("compare", sides[0], other, fails=True)
    (sides[0] / "birds/mae/abmilp/metrics.json").write_text("{")
    assert "metrics.json or a table next to it is damaged" in beyondcls("compare", *sides, fails=True)


def test_unfinished_runs_are_no_results(sides):
    write_probe(sides[0] / ".unfinished", "mae", "cls", 1.0)
    assert [*results_in(sides[0])] == ["birds/mae/abmilp", "birds/mae/cls", "birds/mae/old"]
