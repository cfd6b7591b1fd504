from pathlib import Path

from pipelines.report.collect import Folders, collect
from pipelines.report.content import Figures, Section
from pipelines.report.sections.curves import section
from tests.pipelines.report.written import write_all


def figures(curves: Section) -> Figures:
    (block,) = [block for block in curves.blocks if isinstance(block, Figures)]
    return block


def test_a_plot_for_each_encoder_and_a_line_for_each_head(tmp_path: Path):
    paths = write_all(tmp_path)
    block = figures(section(collect(Folders(paths["probes"], paths["attention"]))))
    assert [figure.name for figure in block.figures] == ["curves-mae", "curves-random"]
    assert [look.name for look in block.legend] == ["cls", "average", "abmilp"]
    for figure in block.figures:
        assert all(f"var(--series-{i})" in figure.svg for i in range(3))
        assert "AbMILP: loss 2.00, top-1 21.0 % after 2 epochs." in figure.alt


def test_missing_curves_are_said(tmp_path: Path):
    paths = write_all(tmp_path)
    for file in (paths["probes"] / "random").glob("*/curves.csv"):
        file.unlink()
    mae, random = figures(section(collect(Folders(paths["probes"])))).figures
    assert mae.svg
    assert (random.svg, random.caption) == ("", "Not computed: there are no curves of this encoder.")
