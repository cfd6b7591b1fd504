"""Numbers as tables and sentences write them, and tables as they are declared."""

import pytest

from pipelines.report.content import Table
from pipelines.report.measured import Measure
from pipelines.report.tables import differences, each, encoders, numbers, plus_minus, points, table, texts
from tests.pipelines.report.written import best


def test_a_small_spread_has_one_digit_more_and_a_single_seed_has_none() -> None:
    for std, written in ((0.5, "0.5"), (0.06, "0.1"), (0.04, "0.04"), (0.003, "0.00"), (0.0, "0.0")):
        measure = Measure(52.16, std, (0.0,) * 3)
        assert (plus_minus(measure), points(measure)) == (f"52.2 ± {written}", f"+52.2 ± {written}")
    assert plus_minus(Measure(52.16, 0.0, (52.16,))) == "52.2"
    assert points(Measure(-0.01, 0.0, (0.0,))) == "0.0"


ITEMS = [("mae", 1.04, 9.9), ("mae", 1.01, 10.1), ("dino", 0.5, None)]


def declared(best: str, of_group: bool = False) -> Table:
    return table(
        "x",
        "X",
        "",
        ITEMS,
        encoders(lambda item: item[0], random=["dino"]),
        each((1, 2), lambda i: numbers(f"n{i}", f"N{i}", lambda item: item[i], 1, best=best), apart=True),
        differences("d", "D", lambda item: None),
        texts("none", "None", lambda item: "", optional=True),
        within=(lambda item: item[0]) if of_group else lambda item: None,
    )


@pytest.mark.parametrize(
    ("best_of", "of_group", "expected"),
    [
        ("", False, [[False, False]] * 3),
        ("column", False, [[True, False], [True, True], [False, False]]),
        ("column", True, [[True, False], [True, True], [True, False]]),
        ("row", False, [[False, True], [False, True], [True, False]]),
    ],
)
def test_the_highest_as_shown_is_bold_in_what_it_is_compared_with(best_of: str, of_group: bool, expected: object) -> None:
    """1.04 and 1.01 are both 1.0; 10.1 is more than 9.9, though not as text."""
    assert best(declared(best_of, of_group), slice(1, 3)) == expected


def test_columns_without_anything_are_left_out_and_random_twins_are_tagged_and_greyed() -> None:
    result = declared("")
    assert [(column.name, column.apart) for column in result.columns] == [
        *(("encoder", False), ("n1", True), ("n2", False), ("d", False))
    ]
    assert [(row.cells[0].tag, row.muted) for row in result.rows] == [("", False)] * 2 + [("random twin", True)]
    fixed = table("x", "X", "", ITEMS, differences("d", "D", lambda item: None, fixed=True))
    assert [column.name for column in fixed.columns] == ["d", "d_interval"]
