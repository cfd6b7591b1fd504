from pathlib import Path

from pipelines.report.collect import Folders, collect
from pipelines.report.content import Definitions, Table
from pipelines.report.sections.provenance import section
from tests.pipelines.report.written import write_all, write_probe


def test_keys_recipes_versions_and_commands(tmp_path: Path):
    paths = write_all(tmp_path)
    blocks = section(collect(Folders(paths["probes"], paths["attention"]))).blocks
    (table,) = [block for block in blocks if isinstance(block, Table)]
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        [name, name, f"training-{name}", f"test-{name}", "patch_size 4", by]
        for name, by in (("mae", "masked image modelling"), ("random", "random weights, seed 0"))
    ]
    training, versions = (dict(block.entries) for block in blocks if isinstance(block, Definitions))
    assert training["Recipe"] == "epochs 2, base_lr 0.03"
    assert (training["Seeds"], training["Selected"]) == ("0, 1, 2", "nothing")
    assert training["Images"] == "50 training, 7 test, 3 classes"
    assert "mae AbMILP (depth 1)" in training["Heads"]
    assert len(training["Commands"].splitlines()) == 6
    assert {"python", "numpy", "beyondcls", "git revision"} <= set(versions)


def test_each_way_of_training_has_its_entry(tmp_path: Path):
    write_probe(tmp_path, "mae", "cls", 10.0)
    write_probe(tmp_path, "mae", "abmilp", 10.0, seeds=(0,))
    blocks = section(collect(Folders(tmp_path, tmp_path / "none"))).blocks
    ways = [dict(block.entries) for block in blocks if isinstance(block, Definitions)][:-1]
    assert [(way["Heads"], way["Seeds"]) for way in ways] == [("mae [cls]", "0, 1, 2"), ("mae AbMILP (depth 1)", "0")]
