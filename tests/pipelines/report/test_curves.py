from pathlib import Path

from pipelines.report.collect import Folders, collect
from pipelines.report.content import Figures
from pipelines.report.sections.curves import section
from tests.pipelines.report.written import write_all


def test_a_plot_for_each_encoder_and_a_line_for_each_head(tmp_path: Path):
    paths = write_all(tmp_path)
    for file in (paths["probes"] / "random").glob("*/curves.csv"):
        file.unlink()
    (block,) = (block for block in section(collect(Folders(paths["probes"]))).blocks if isinstance(block, Figures))
    assert [figure.name for figure in block.figures] == ["curves-mae", "curves-random"]
    assert [look.name for look in block.legend] == ["cls", "average", "abmilp"]
    mae, random = block.figures
    assert all(f"var(--series-{i})" in mae.svg for i in range(3))
    assert "AbMILP: loss 2.00, top-1 21.0 % after 2 epochs." in mae.alt
    assert (random.svg, random.caption) == ("", "Not computed: there are no curves of this encoder.")
