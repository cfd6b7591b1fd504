"""Tables of the paper as it prints them."""

from collections.abc import Callable

import pytest

from pipelines.report import aggregation_entropy
from pipelines.report.content import Table
from pipelines.report.published.table_1 import TABLE_1
from pipelines.report.published.table_5 import TABLE_5
from pipelines.report.published.table_6 import TABLE_6
from pipelines.report.published.table_7 import TABLE_7
from pipelines.report.published.table_8 import TABLE_8
from pipelines.report.sections import accuracy, cost, detection, localisation, selection, variants
from probe.aggregators import AGGREGATORS


@pytest.mark.parametrize(
    ("build", "source", "n_rows", "row"),
    [
        (accuracy.published, "2412.03215v1, Table 1", 13, ["SimMIM", "ViT-B", "51.5", "54.3", "62.8", "+11.3"]),
        (accuracy.published, "2412.03215v1, Table 1", 13, ["MAE", "ViT-B", "67.8", "65.8", "71.6", "+3.8"]),
        (variants.published, "v2, Table 5", 10, ["2", "Tanh", "–", "68.7"]),
        (variants.published_v1, "v1, Table 3", 4, ["–", "–", "yes", "74.83"]),
        (cost.published, "v2, Table 7", 7, ["MAE", "ViT-B", "71.6", "71.4", "75.4"]),
        (
            selection.published,
            "2412.03215v2, Table 6 (Table 4 of v1)",
            len(TABLE_6),
            ["average DINO [cls] token attention", "cls-attention, of joined", "70.9", "4.89", "133.0"],
        ),
        (localisation.published, "2412.03215v2, Table 8", 2, ["MAE", "ViT-B", "53.3", "59.4"]),
        (localisation.published, "2412.03215v2, Table 8", 2, ["BEiT-v2", "ViT-B", "44.3", "65.1"]),
        (
            detection.published,
            "2412.03215v1, Table 5",
            3,
            ["MAE (fine-tuned)", "43.3", "30.8", "17.2", "42.5", "27.2", "12.2"],
        ),
        (detection.published, "2412.03215v1, Table 5", 3, ["DINO", "47.2", "35.3", "20.5", "46.7", "31.2", "14.9"]),
        (detection.published, "2412.03215v1, Table 5", 3, ["MAE", "41.3", "32.0", "18.6", "41.7", "29.2", "14.0"]),
        (aggregation_entropy.published, "2412.03215v2, Table 3", 6, ["I-JEPA", "5.28", "196.4", "5.55", "256"]),
        (aggregation_entropy.published, "2412.03215v2, Table 3", 6, ["DINO", "4.70", "109.9", "5.28", "196"]),
    ],
)
def test_as_printed(build: Callable[[], Table], source: str, n_rows: int, row: list[str]) -> None:
    table = build()
    assert table.published.endswith(source)
    assert len(table.rows) == n_rows
    assert row in [[cell.text for cell in row.cells] for row in table.rows]


def test_what_the_paper_says_of_them() -> None:
    gains = {(row.encoder, row.vit): row.gain for row in TABLE_1}
    assert (gains["MAE", "ViT-B"], gains["DINO", "ViT-B"], gains["I-JEPA", "ViT-H"]) == (3.8, -1.9, None)
    assert [row.group for row in accuracy.published().rows].count("joint embedding") == 3
    assert "not comparable" in accuracy.published().note
    assert all(row.ap_12 > max(row.abmilp, row.ap_1) for row in TABLE_7)
    assert all(row.abmilp > row.cls for row in TABLE_8)
    assert [row.cells[0].text for row in selection.published().rows if row.cells[2].best] == ["AbMILP"]
    assert {row.aggregator.partition(",")[0] for row in TABLE_6} < set(AGGREGATORS)
    table_3 = aggregation_entropy.published()
    limits = {row.cells[0].text: row.cells[3].text for row in table_3.rows}
    assert {name for name, limit in limits.items() if limit == "5.55"} == {"I-JEPA", "CAPI"}  # 256 patches
    assert "Printed for I-JEPA and CAPI is 5.28; an average of their 256 patches has 5.55." in table_3.note


def test_each_row_appears_once_and_percentages_are_below_100() -> None:
    assert len({(row.depth, row.activation, row.self_attention) for row in TABLE_5}) == len(TABLE_5)
    assert len({(row.encoder, row.vit) for row in TABLE_1}) == len(TABLE_1)
    assert all(0 < value < 100 for row in TABLE_1 for value in (row.average, row.abmilp, row.cls or row.average))
