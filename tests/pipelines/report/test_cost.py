from dataclasses import asdict
from pathlib import Path

from pipelines.report.collect import Folders, collect
from pipelines.report.content import Figures
from pipelines.report.measured import Probe
from pipelines.report.sections.cost import section
from probe.timing import Timing, write_timing
from tests.pipelines.report.written import best, figures, inputs, shown, studied, tables, write_probe

HEADS = (
    studied("mae", "cls", 46.0, "cls", parameters=0, flops=3840),
    studied("mae", "average", 51.0, "average", parameters=0, flops=3840),
    studied("mae", "abmilp", 50.0),
    studied("mae", "<b>ap", 54.0, "ap", parameters=73_920, flops=741_120),
    studied("mae", "ep", 53.0, "ep", parameters=43_008, flops=1_650_432),
)


def test_nothing_where_no_cost_is_known():
    unknown = studied("mae", "mine", 50.0, flops=None)
    assert section(inputs("poolings", unknown, main=(unknown,))) is None


def test_costs_are_read_from_metrics(tmp_path: Path):
    cost = {"parameters": 193, "parameters_classifier": 1930, "flops_per_image": 52_992}
    write_probe(tmp_path, "mae", "abmilp", 40.0, cost=cost)
    result = section(collect(Folders(tmp_path)))  # without the study, what was probed
    assert shown(tables(result)["cost"]) == [["mae", "AbMILP", "40.0 ± 0.5", "yes", "193", "1.93 k", "53.0 k"]]


def test_what_was_recorded_of_some_stands_beside_the_accuracy():
    timing = {"ms_per_image": 0.012345, "n_images": 64, "device": "cpu", "threads": 1}
    known = {"flops_of_encoder": 999 * HEADS[2].cost["flops_per_image"], "memory_per_image": 12_345, "bytes_per_image": 24_576}
    one = Probe(HEADS[2], cost=HEADS[2].cost | known, timing=timing)
    table = tables(section(inputs("poolings", one, HEADS[0])))["cost"]
    names = ["share_of_inference", "memory_per_image", "bytes_per_image", "ms_per_image", "device", "threads", "n_images_timed"]
    assert [column.name for column in table.columns][3:10] == names
    assert shown(table, slice(3, 10)) == [["–"] * 7, ["0.1", "12.3 k", "24.6 k", "0.0123", "cpu", "1", "64"]]


def test_a_time_is_that_of_the_metrics_beside_it(tmp_path: Path):
    folder = write_probe(tmp_path, "mae", "abmilp", 40.0)
    timing = Timing(0.5, 64, "cpu", 1)
    write_timing(folder, timing)
    assert collect(Folders(tmp_path)).probes["mae", "abmilp"].timing == asdict(timing)
    metrics = (folder / "description.json").read_text()
    (folder / "description.json").write_text(metrics.replace("40.0", "41.0"))  # DVC brought those of an earlier run back
    assert collect(Folders(tmp_path)).probes["mae", "abmilp"].timing == {}


def test_heads_of_the_study_that_none_beats_for_less_are_marked():
    """It goes before other probes. [cls] costs what the average costs; AbMILP reaches less, and EP costs more."""
    table = tables(section(inputs("poolings", *HEADS, main=(studied("other", "cls", 1.0, "cls"),))))["cost"]
    assert shown(table, slice(1, 2)) == [["[cls]"], ["average"], ["AbMILP"], ["<b>ap"], ["ep"]]
    assert best(table, slice(2, 3)) == [[False], [False], [False], [True], [False]]
    place = [column.name for column in table.columns].index("on_front")
    assert [row[1] for row in shown(table) if row[place] == "yes"] == ["average", "<b>ap"]


def test_the_plot_has_a_line_for_each_encoder():
    result = section(inputs("poolings", *HEADS, studied("di<no>", "abmilp", 45.0)))
    (fronts,) = figures(result)
    (legend,) = (block.legend for block in result.blocks if isinstance(block, Figures))
    assert {look.name for look in legend} == {"mae", "di<no>"}
    assert all(f">{tick}</text>" in fronts.svg for tick in ("3 k", "10 k", "100 k", "1 M"))
    assert fronts.svg.count("var(--series-") >= 2
