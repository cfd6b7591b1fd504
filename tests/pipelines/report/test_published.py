"""Tables of the paper as it prints them."""

import math
from pathlib import Path

import pytest

from pipelines.report.content import Table
from pipelines.report.published import row as shipped
from pipelines.report.published.printed import printed_table
from probe.aggregators import AGGREGATORS
from tests.pipelines.report.written import best, shown

TABLES = {
    "table-1": ("v1, Table 1", 13, ["MAE", "ViT-B", "67.8", "65.8", "71.6", "+3.8"]),
    "table-3": ("v2, Table 3", 6, ["I-JEPA", "5.28", "196.4", "5.55", "256"]),
    "table-3-v1": ("v1, Table 3", 4, ["–", "–", "yes", "74.83"]),
    "table-5": ("v2, Table 5", 10, ["2", "Tanh", "–", "68.7"]),
    "table-5-v1": ("v1, Table 5", 3, ["MAE (fine-tuned)", "43.3", "30.8", "17.2", "42.5", "27.2", "12.2"]),
    "table-5-v1-differing": ("v1, Table 5", 10, ["precision", "mixed", "float32"]),
    "table-6": (
        "(Table 4 of v1)",
        5,
        ["average DINO [cls] token attention", "cls-attention, of joined", "70.9", "4.89", "133.0"],
    ),
    "table-7": ("v2, Table 7", 7, ["MAE", "ViT-B", "71.6", "71.4", "75.4"]),
    "table-8": ("v2, Table 8", 2, ["BEiT-v2", "ViT-B", "44.3", "65.1"]),
}


def values(table: Table, column: str) -> list[float | str | None]:
    place = [one.name for one in table.columns].index(column)
    return [row.cells[place].value for row in table.rows]


@pytest.mark.parametrize("name", TABLES)
def test_as_printed(name: str) -> None:
    source, n_rows, row = TABLES[name]
    table = printed_table(name)
    assert table.name == f"published-{name}"
    assert table.published.endswith(source)
    assert len(table.rows) == n_rows
    assert row in shown(table)
    assert len(set(map(tuple, shown(table)))) == n_rows


def test_no_table_is_forgotten() -> None:
    files = {file.stem for file in Path(shipped.__file__).parent.glob("table-*.csv")}
    assert files == TABLES.keys()


def test_columns_that_are_computed_are_right() -> None:
    first, third, sixth = printed_table("table-1"), printed_table("table-3"), printed_table("table-6")
    for cls, abmilp, apart in zip(*(values(first, name) for name in ("cls", "abmilp", "abmilp_minus_cls")), strict=True):
        assert apart == (None if cls is None else pytest.approx(round(abmilp - cls, 1)))
    for table in (third, sixth):
        entropies = values(table, "entropy")
        assert values(table, "effective_patches") == [round(math.exp(entropy), 1) for entropy in entropies]
    assert values(third, "ln_T") == [round(math.log(n), 2) for n in values(third, "n_tokens")]
    assert [row.cells[0].tag for row in third.rows].count("no [cls]: uniform") == 2
    assert [row.group for row in first.rows].count("joint embedding") == 3
    assert best(sixth, slice(2, 3)) == [[False]] * 4 + [[True]]
    assert {aggregator.partition(",")[0] for aggregator in values(sixth, "aggregator")} < set(AGGREGATORS)


@pytest.mark.parametrize(
    ("name", "printed_in"),
    [(name, [name]) for name in ("table-1", "table-6", "table-7")] + [("table-5", ["table-5", "table-3-v1"])],
)
def test_rows_to_compare_with_have_the_numbers_of_the_tables(name: str, printed_in: list[str]) -> None:
    columns = {"cls", "average", "abmilp", "ap_1", "ap_12", "top1", "entropy"}
    tables = [printed_table(one) for one in printed_in]
    numbers = {
        value for table in tables for column in table.columns if column.name in columns for value in values(table, column.name)
    }
    assert {row.value for row in shipped.SHIPPED[f"paper-{name}"]()} == numbers - {None}
