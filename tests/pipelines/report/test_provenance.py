from pathlib import Path

from pipelines.report.collect import Folders, collect
from pipelines.report.sections.provenance import section
from tests.pipelines.report.written import shown, tables, write_all, write_probe


def test_keys_recipes_and_versions(tmp_path: Path):
    """Each way of training has its row."""
    paths = write_all(tmp_path)
    write_probe(paths["probes"], "mae", "other", 10.0, seeds=(0,))
    of_sets, trainings, versions = tables(section(collect(Folders(paths["probes"], paths["attention"])))).values()
    assert shown(of_sets) == [
        [name, name, f"training-{name}", f"test-{name}", "patch_size 4", by]
        for name, by in (("mae", "masked image modelling"), ("random", "random weights, seed 0"))
    ]
    (heads, *first), (other, *second) = shown(trainings)
    assert first == ["epochs 2, base_lr 0.03", "0, 1, 2", "nothing", "50 training, 7 test, 3 classes"]
    assert (other, second[1]) == ("mae other", "0")
    assert {"mae AbMILP (depth 1)", "random [cls]"} < set(heads.split("; "))
    assert {"python", "numpy", "beyondcls", "git revision"} <= {row[0] for row in shown(versions)}
