from dataclasses import replace

import pytest

from pipelines.report.measured import Probe
from pipelines.report.sections.variants import section
from pipelines.report.studies import NOT_ALIKE, count, trained_alike
from tests.pipelines.report.written import RECIPE, inputs, shown, studied, tables

HEADS = (
    studied("mae", "sa-abmilp", 54.0, "sa-abmilp", flops=22_073_088, parameters=147_841),
    studied("mae", "deep", 51.0, depth=2, activation="gelu", flops=4_771_584, parameters=37_249),
    studied("mae", "abmilp", 50.0),
    studied("mae", "cls", 45.0, "cls", parameters=0, flops=3840),
)


def test_rows_from_the_cheapest_on():
    table, contrasts = (tables(section(inputs("variants", *HEADS)))[name] for name in ("variants", "variants-gains"))
    assert shown(contrasts, slice(3)) == [["mae", "deep", "+1.0 ± 0.7"], ["mae", "sa-abmilp", "+4.0 ± 0.7"]]
    assert "variants-gains" not in tables(section(inputs("variants", HEADS[1])))
    titles = ["Linear layers", "Activation", "Self-attention", "Top-1, %", "Against one layer"]
    assert [column.title for column in table.columns][2:7] == titles
    assert shown(table) == [
        ["mae", "[cls]", "–", "–", "–", "45.0 ± 0.5", "−5.0 ± 0.7", "0", "1.93 k", "3.84 k"],
        ["mae", "AbMILP", "1", "–", "–", "50.0 ± 0.5", "–", "193", "1.93 k", "53.0 k"],
        ["mae", "deep", "2", "GELU", "–", "51.0 ± 0.5", "+1.0 ± 0.7", "37.2 k", "1.93 k", "4.77 M"],
        ["mae", "sa-abmilp", "1", "–", "yes", "54.0 ± 0.5", "+4.0 ± 0.7", "148 k", "1.93 k", "22.1 M"],
    ]
    assert [row.cells[5].best for row in table.rows] == [False, False, False, True]
    assert (table.rows[3].cells[7].value, table.rows[3].cells[6].std) == (147_841, pytest.approx(0.5 * 2**0.5))


def test_another_recipe_stands_apart():
    """The paper trains self-attention with SGD, as LARS is unstable with it."""
    both = inputs("variants", *HEADS[1:])
    apart = inputs("self-attention", HEADS[0], studied("other", "sa-abmilp", 20.0, "sa-abmilp"))
    shown_apart = tables(section(replace(both, studies={**both.studies, **apart.studies})))["variants-apart"]
    assert [row[1:7] for row in shown(shown_apart)] == [
        ["sa-abmilp", "1", "–", "yes", "54.0 ± 0.5", "+4.0 ± 0.7"],
        ["sa-abmilp", "1", "–", "yes", "20.0 ± 0.5", "–"],
    ]


def test_counts():
    shown = {0: "0", 999: "999", 1000: "1.00 k", 9_996: "10.0 k", 99_960: "100 k", 999_600: "1.00 M", 2 * 10**9: "2.00 G"}
    assert {value: count(value).text for value in (*shown, None)} == {**shown, None: "–"}


def test_how_heads_were_trained():
    """Rates of their own are alike where each was selected from a grid."""
    assert "epochs 4, optimiser sgd, batch_size 128, base_lr 0.03, seeds 3" in trained_alike(HEADS)
    other = studied("mae", "longer", 50.0, recipe={**RECIPE, "base_lr": 0.1})
    fewer = studied("mae", "fewer", 50.0, n_seeds=2)
    assert trained_alike((*HEADS, other)) == trained_alike((*HEADS, fewer)) == NOT_ALIKE
    selected = [Probe(probe, recorded={"selected": {"by": "top1"}}) for probe in (*HEADS, other)]
    assert "batch_size 128, seeds 3" in trained_alike(selected)
    assert trained_alike([studied("mae", "closed", 50.0, recipe={"name": "ridge"})]) == ""
