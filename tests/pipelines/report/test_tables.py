"""Numbers as tables and sentences write them."""

import pytest

from pipelines.report.measured import Measure
from pipelines.report.tables import plus_minus, points


@pytest.mark.parametrize(
    ("std", "written"), [(0.5, "0.5"), (0.06, "0.1"), (0.04, "0.04"), (0.003, "0.00"), (0.0, "0.0"), (12.34, "12.3")]
)
def test_a_small_spread_has_one_digit_more(std: float, written: str) -> None:
    measure = Measure(52.16, std, (0.0,) * 3)
    assert plus_minus(measure) == f"52.2 ± {written}"
    assert points(measure) == f"+52.2 ± {written}"


def test_without_a_spread_there_is_the_mean_alone() -> None:
    assert plus_minus(Measure(52.16, 0.0, (52.16,))) == "52.2"
    assert points(Measure(-0.01, 0.0, (0.0,))) == "0.0"
