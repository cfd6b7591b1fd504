from pathlib import Path

from pipelines.report.collect import Folders, collect
from pipelines.report.content import Figures, Section
from pipelines.report.sections.curves import best_epochs, section
from tests.pipelines.report.written import write_all, write_probe


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


def test_the_best_epoch_stands_beside_the_last_one(tmp_path: Path):
    """It is that of each seed, and is called what it is."""
    curves = write_probe(tmp_path, "mae", "cls", 46.0, seeds=(0, 1)) / "curves.csv"
    curves.write_text("seed,epoch,loss,top1\n0,1,2.0,50.0\n0,2,1.0,45.0\n1,1,2.0,48.0\n1,2,1.0,52.0\n1,3,1.0,52.0\n")
    table = best_epochs(collect(Folders(tmp_path)))
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["mae", "[cls]", "46.00 ± 0.50", "51.00 ± 1.41", "1, 2"]
    ]
    assert [column.title for column in table.columns][2:4] == ["Last epoch, %", "Best epoch on the test images, %"]
    assert "Results are those of the last epoch." in table.note
