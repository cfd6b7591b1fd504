import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipelines.report.attention_statistics import UNIFORM, by_block, statistics_table
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Figure, Figures, Table
from pipelines.report.published.printed import printed_table
from pipelines.report.sections.statistics import by_median, head_figures, read_heads, section
from tests.pipelines.report.written import STATISTICS, UNITS, figures, shown, write_all


def inputs_of(paths: dict[str, Path]) -> Inputs:
    return collect(Folders(paths["probes"], paths["attention"]))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return inputs_of(write_all(tmp_path_factory.mktemp("report")))


def tables(inputs: Inputs) -> dict[str, Table]:
    """Those of the section, without its plots."""
    return {table.name: table for table in (statistics_table(inputs), printed_table("table-3"), by_block(inputs.attention))}


def rows(table: Table) -> dict[str, list[str]]:
    return {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.rows}


def test_four_plots_with_units_and_all_encoders(inputs: Inputs):
    result = section(inputs)
    assert [block for block in result.blocks if isinstance(block, Table)] == list(tables(inputs).values())
    plots = figures(result)[:4]
    assert [(figure.caption, figure.title) for figure in plots] == [
        (f"As Fig. {n} of the paper.", f"Title of {name}") for n, name in enumerate(STATISTICS, 3)
    ]
    for figure, entropy in zip(plots, (False, True, False, True), strict=True):
        assert UNITS[entropy] in figure.svg
        assert ("ln 4 = 1.39" in figure.svg) is entropy
        assert "var(--series-0)" in figure.svg
        assert "var(--series-random)" in figure.svg
        assert "block, counted from 0" in figure.svg
        assert across(figure, "0") == across(figure, "random")


def across(figure: Figure, series: str) -> list[float]:
    """Where the blocks of an encoder are."""
    (name,) = re.findall(rf"\.([\w-]+) {{fill: none; [^}}]*stroke: var\(--series-{series}\)[^}}]*}}", figure.svg)
    (line,) = re.findall(rf'<path d="([^"]+)" clip-path="[^"]*" class="{name}"', figure.svg)
    return [float(x) for x in re.findall(r"[ML] ([\d.]+)", line)]


def test_encoders_of_different_depths_stand_at_relative_ones(tmp_path: Path):
    paths = write_all(tmp_path, statistics=STATISTICS[:1])
    file = paths["attention"] / "random" / "statistics.csv"
    file.write_text(file.read_text() + f"{STATISTICS[0]},2,0.5,0.1\n")
    figure = figures(section(inputs_of(paths)))[0]
    assert "relative depth: block, counted from 1 / number of blocks" in figure.svg
    assert "counted from 0" not in figure.svg
    two, three = across(figure, "0"), across(figure, "random")  # at 1/2 and 1, at 1/3, 2/3 and 1
    assert two[-1] == three[-1]
    assert (two[1] - two[0]) / (three[1] - three[0]) == pytest.approx(1.5, abs=0.001)
    assert three[2] - three[1] == pytest.approx(three[1] - three[0], abs=0.02)


def test_missing_attention_is_named(tmp_path: Path):
    paths = write_all(tmp_path, statistics=STATISTICS[:1])
    shutil.rmtree(paths["attention"] / "random")
    figure = figures(section(inputs_of(paths)))[0]
    assert figure.caption.endswith("Not computed: random.")
    assert "var(--series-random)" not in figure.svg
    shutil.rmtree(paths["attention"])
    result = section(inputs_of(paths))
    assert [type(block) for block in result.blocks] == [Figures]
    assert [figure.svg for figure in figures(result)] == [""] * 4
    assert all("Not computed" in figure.caption for figure in figures(result))


def test_a_heat_map_of_blocks_by_heads_for_each_statistic(tmp_path: Path):
    paths = write_all(tmp_path, statistics=STATISTICS[:2])
    plots = head_figures(inputs_of(paths))
    assert [(figure.name, figure.title) for figure in plots] == [
        ("heads-cls-self", "Title of cls_self"),
        ("heads-cls-patch-entropy", "Title of cls_patch_entropy"),
    ]
    for figure in plots:
        assert figure.svg.count("<image") == 3  # two encoders, and the scale
        assert "mae: from 0.25 to 0.75 over 2 blocks of 3 heads." in figure.alt
    values = read_heads(paths["attention"] / "mae/heads.csv")["cls_self"]
    assert np.array_equal(values, [[0.5, 0.375, 0.25], [0.75, 0.625, 0.5]])
    (paths["attention"] / "random" / "heads.csv").unlink()
    assert head_figures(inputs_of(paths))[0].caption == "Not computed: random."


def test_entropies_are_means_over_blocks_beside_ln_t(inputs: Inputs):
    result = rows(tables(inputs)["aggregation-entropy"])
    share = f"{100 * 0.625 / math.log(4):.1f}"
    over_all, last = ["0.62", f"{math.exp(0.625):.1f}", share], ["0.75", f"{math.exp(0.75):.1f}"]
    assert result == {encoder: [*over_all, *last, "1.39", "4"] for encoder in ("mae", "random")}


def test_statistics_of_each_block_are_a_table(inputs: Inputs):
    table = tables(inputs)["attention-by-block"]
    names = [column.name for column in table.columns][2:]
    assert names == ["cls_self", "cls_patch_entropy", "effective_patches", "patch_self", "patch_patch_entropy"]
    assert [column.title for column in table.columns if "Title" in column.title] == [f"Title of {n}" for n in STATISTICS]
    assert [row.cells[4].value for row in table.rows[:2]] == [math.exp(0.5), math.exp(0.75)]
    of_blocks = [("0", "0.500 ± 0.125"), ("1", "0.750 ± 0.125")]
    assert shown(table, slice(3)) == [[encoder, *of_block] for encoder in ("mae", "random") for of_block in of_blocks]


def test_an_encoder_without_cls_gathers_evenly(tmp_path: Path):
    paths = write_all(tmp_path)
    (paths["attention"] / "mae" / "maps/cls_map.npy").unlink()
    file = paths["attention"] / "mae" / "statistics.csv"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("cls_")))
    kept = tables(inputs_of(paths))["aggregation-entropy"].rows[0].cells
    assert (kept[0].tag, kept[1].text) == ("", "–")  # a [cls] head was probed: it has one, whose statistics are missing
    shutil.rmtree(paths["probes"] / "mae" / "cls")
    uniform = tables(inputs_of(paths))["aggregation-entropy"].rows[0].cells
    assert (uniform[0].tag, uniform[1].text, uniform[1].value) == (UNIFORM, "1.39", math.log(4))


def with_medians(folder: Path) -> None:
    """As attention is written since medians are kept: cls_self is declared to be without bound."""
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"unbounded": ["cls_self"]}))
    for name, columns in (("statistics.csv", "median,lower_quartile,upper_quartile"), ("heads.csv", "median")):
        header, *lines = (folder / name).read_text().splitlines()
        values = ",".join(["0.25", "0.125", "2000"][: len(columns.split(","))])
        (folder / name).write_text("\n".join([f"{header},{columns}", *(f"{line},{values}" for line in lines)]))


def test_what_declares_itself_without_bound_is_shown_by_its_median(tmp_path: Path):
    paths = write_all(tmp_path, statistics=STATISTICS[:2])
    with_medians(paths["attention"] / "mae")
    table = tables(inputs_of(paths))["attention-by-block"]
    assert [column.name for column in table.columns][2:4] == ["cls_self_median", "cls_patch_entropy"]
    mae, random = table.rows[0].cells, table.rows[2].cells
    assert (mae[2].text, mae[2].value, mae[3].text) == ("0.250 (0.125–2.0e+03)", 0.25, "0.500 ± 0.125")
    assert random[2].text == "–"
    assert "no medians of random" in table.note
    assert not by_median(inputs_of(paths).attention.values())  # one scale of a plot cannot show medians beside means
    with_medians(paths["attention"] / "random")
    unbounded, other = head_figures(inputs_of(paths))
    assert ("Median" in unbounded.caption, "Median" in other.caption) == (True, False)
    assert "mae: from 0.25 to 0.25 over 2 blocks" in unbounded.alt
    assert "None were kept" not in tables(inputs_of(paths))["attention-by-block"].note
