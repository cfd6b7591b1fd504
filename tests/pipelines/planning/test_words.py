"""What the tables say."""

from dataclasses import replace

import pytest

from extract.encoders.cost import Cost
from pipelines.planning import words
from pipelines.planning.flops import flops_table
from pipelines.planning.gpus import GPUS
from pipelines.planning.trainings import LeftOut
from pipelines.planning.work import Work, total
from pipelines.store.table import size
from tests.pipelines.planning.fabricated import ENCODER, project

HOUR = 3600.0
WORKS = [
    Work("extract", "train", "e", "d", 120 * HOUR, {"decoding": 1 * HOUR, "encoder": 110 * HOUR}, written=3e12),
    Work("probe", "abmilp", "e", "d", 6 * HOUR, {"reading": 6 * HOUR, "heads": 2 * HOUR}, read=4e15, looped=600 * HOUR),
]


def spaced(line: str) -> str:
    """With single spaces."""
    return " ".join(line.split())


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (3, "<0.001"), (HOUR / 80, "0.0125"), (99.9 * HOUR, "99.9"), (12345.6 * HOUR, "12,346")]
)
def test_hours(seconds: float, text: str) -> None:
    assert words.hours(seconds) == text


def test_stages() -> None:
    rows = [spaced(line) for line in words.stages_table(WORKS, 4)]
    assert rows[1] == "extract 1 120 30 3 TB 0 B 1 110 0 0 0 encoder"
    assert rows[2] == "probe 1 6 6 0 B 4 PB 0 0 0 6 2 reading"
    assert rows[3] == "all 2 126 36 3 TB 4 PB 1 110 0 6 2 encoder"
    assert spaced(words.stages_table(WORKS, 1)[1]).startswith("extract 1 120 3 TB")


def test_trained_heads() -> None:
    (_, row) = words.training_table(WORKS)
    assert spaced(row) == "abmilp probe 1 6 2 6 4 PB 600"


def test_encoders_and_their_data_sets() -> None:
    planned = project()
    head, row = map(spaced, words.encoders_table(planned))
    assert head.split()[-5:] == ["patch", "cls", "statistics", "attention", "images"]
    assert row == "e 100 20 10 9.73 100 1 kB 10 B 4 B 6 B 8 B"  # 10 kB/s of 1,028 bytes, 100 kB/s of patch tokens
    assert spaced(words.extraction_table(planned, planned.works()[0])[1]) == "e 1.13 MB 0.0314"


def test_operations_of_encoders() -> None:
    """1,100 images; three views of 1,000 of them."""
    of_two = {"e": replace(ENCODER, cost=Cost(3 * 10**12, 0, 0)), "uncounted": ENCODER}
    planned = project(encoders=of_two, datasets={"d": {}, "crops": {"views": 3}})
    works, hour = planned.works()[0], 0.4 * 312e12 * HOUR
    e, uncounted, all_encoders, words_of_it = (spaced(line) for line in flops_table(planned, works, GPUS["a100"])[1:])
    cells = [cell for n in (1100, 3100, 4200) for cell in (f"{3e12 * n / 1e15:.3g}", f"{3e12 * n / hour:.3g}")]
    assert e == f"e 3,000.0 {' '.join(cells)}" == "e 3,000.0 3.3 0.00735 9.3 0.0207 12.6 0.028"
    assert uncounted == "uncounted not counted"
    assert all_encoders == f"all {' '.join(cells)}"
    assert words_of_it.startswith("an estimate, not measured: GPU-hours at 40% of an A100, 312 TFLOP/s in bf16")
    faster = spaced(flops_table(planned, works, GPUS["h100"])[1])
    assert faster == "e 3,000.0 3.3 0.00232 9.3 0.00653 12.6 0.00885"


def test_what_would_be_saved_and_what_is_left_out() -> None:
    assert "write 1 TB instead of 3 TB, read 0 B instead of 4 PB, and take 2 hours instead of 126" in "".join(
        words.saved({"--dtype int8": total([Work("extract", "train", "e", "d", 2 * HOUR, written=1e12)])}, total(WORKS))
    )
    assert "would take 600 hours, 4.76 times as long" in words.loop_line(total(WORKS))
    left_out = LeftOut({"cls": {"b", "a"}}, {"few": "list.txt"})
    lines = list(words.left_out_lines(left_out))
    assert lines[0].endswith("cls of a, b")
    assert lines[1] == "not counted: few, as there is no list.txt, and its length is not known; put the file there"


def test_bytes_of_everything() -> None:
    assert (size(2.02e15), size(9.9e14)) == ("2.02 PB", "990 TB")
