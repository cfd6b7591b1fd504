from pipelines.report.collect import Folders, Inputs
from pipelines.report.sections.by_block import section
from tests.pipelines.report.everything import write_by_block
from tests.pipelines.report.written import best, figures, shown, studied, tables


def inputs(root, *encoders):
    return Inputs({(e, "cls"): studied(e, "cls", 40.0, "cls") for e in encoders}, folders=Folders(blocks=root))


def test_which_block_is_best(tmp_path):
    mae = {("cls", "linear"): (40, 52, 48), ("average", "linear"): (40, 45, 45.9), ("cls", "knn"): (3, 2, 1)}
    write_by_block(tmp_path, "mae", mae)
    write_by_block(tmp_path, "dino", {("abmilp", "linear"): (60,), ("cls", "linear"): (44, 40)}, n_test=200)
    write_by_block(tmp_path, "not shown", {("cls", "linear"): (30, 40)})
    result = section(inputs(tmp_path, "mae", "dino"))
    table = tables(result)["by-block"]
    assert shown(table) == [
        ["dino", "[cls]", "44.0", "40.0", "–", "0", "+4.0", "not shown", "384"],  # of few images
        ["dino", "AbMILP", "60.0", "–", "–", "–", "–", "–", "384"],
        ["mae", "[cls]", "40.0", "52.0", "48.0", "1", "+4.0", "ahead", "384"],
        ["mae", "average", "40.0", "45.0", "45.9", "2", "0.0", "not shown", "768"],
        ["mae", "[cls], knn", "3.0", "2.0", "1.0", "0", "+2.0", "not shown", "384"],
    ]
    assert [row[2:5] for row in best(table)] == [
        *([True, False, False], [True, False, False], [False, True, False], [False, False, True], [True, False, False])
    ]
    dino, mae = figures(result)
    assert [figure.name for figure in (dino, mae)] == ["by-block-dino", "by-block-mae"]
    assert "[cls]: 40.0 ± 0.5 % in block 0, 52.0 ± 0.5 % in block 1, 48.0 ± 0.5 % in block 2" in mae.alt
