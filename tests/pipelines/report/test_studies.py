import pytest

from pipelines.report.measured import Probe
from pipelines.report.sections import sections
from pipelines.report.sections.studies import NOT_ALIKE, count, section, trained_alike
from store import BeyondClsError
from tests.pipelines.report.written import RECIPE, inputs, shown, studied, tables

HEADS = (
    studied("mae", "sa-abmilp", 54.0, "sa-abmilp", flops=22_073_088, parameters=147_841),
    studied("mae", "deep", 51.0, depth=2, activation="gelu", flops=4_771_584, parameters=37_249),
    studied("mae", "abmilp", 50.0),
    studied("mae", "cls", 45.0, "cls", parameters=0, flops=3840),
)


def test_rows_from_the_cheapest_on_with_a_column_for_each_option():
    table, contrasts = (tables(section(inputs("variants", *HEADS)))[f"study-variants{of}"] for of in ("", "-gains"))
    assert shown(contrasts, slice(4)) == [
        ["mae", "[cls]", "AbMILP", "−5.0 ± 0.7"],
        ["mae", "deep", "AbMILP", "+1.0 ± 0.7"],
        ["mae", "sa-abmilp", "AbMILP", "+4.0 ± 0.7"],
    ]
    assert [column.title for column in table.columns][2:6] == ["Top-1, %", "Aggregator", "depth", "activation"]
    assert shown(table) == [
        ["mae", "[cls]", "45.0 ± 0.5", "cls", "–", "–", "0", "1.93 k", "3.84 k"],
        ["mae", "AbMILP", "50.0 ± 0.5", "abmilp", "–", "–", "193", "1.93 k", "53.0 k"],
        ["mae", "deep", "51.0 ± 0.5", "abmilp", "2", "gelu", "37.2 k", "1.93 k", "4.77 M"],
        ["mae", "sa-abmilp", "54.0 ± 0.5", "sa-abmilp", "–", "–", "148 k", "1.93 k", "22.1 M"],
    ]
    assert [row.cells[2].best for row in table.rows] == [False, False, False, True]
    assert table.rows[3].cells[6].value == 147_841


@pytest.mark.parametrize(
    ("heads", "gained"),
    {
        "fewest options": ([studied("mae", "x1", 50.0, flops=9, depth=2, branches=1), studied("mae", "x", 50.5, k=1)], "−0.5"),
        "lists": ([studied("mae", "abmilp", 50.0), studied("mae", "both", 51.5, blocks=[3, 5])], "+1.5"),
        "without AbMILP": ([studied("mae", "k8", 48.0, "ep", k=8), studied("mae", "k1", 47.0, "ep", flops=9, k=1)], "+1.0"),
        "one head": ([studied("mae", "abmilp", 50.0)], None),
    }.values(),
)
def test_what_heads_are_compared_with(heads, gained):
    found = tables(section(inputs("mine <i>", *heads)))
    assert set(found) == {"study-mine-i"} | ({"study-mine-i-gains"} if gained else set())
    assert not gained or [row[3] for row in shown(found["study-mine-i-gains"])] == [f"{gained} ± 0.7"]
    assert ["3, 5" in row for row in shown(found["study-mine-i"])] == ["blocks" in head.options for head in heads]


def test_one_study_of_several():
    both = inputs("branches", *HEADS, main=HEADS)
    both.studies["depths"] = both.studies["views"] = both.studies["branches"]  # type: ignore[index]
    assert set(tables(section(both))) == {f"study-{name}{of}" for name in ("branches", "depths") for of in ("", "-gains")}
    assert set(tables(*sections(both, ["depths"]))) == {"study-depths", "study-depths-gains"}
    assert section(inputs("views", *HEADS)) is None
    with pytest.raises(BeyondClsError, match=r"'depht'.*depths"):
        sections(both, ["depht"])


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
