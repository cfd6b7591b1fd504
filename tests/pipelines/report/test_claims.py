"""The paper's claims: which verdict the numbers give, and where they give none."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.report.claims import AHEAD, BEYOND, EVEN, MORE, NATS, NO_MORE, POINTS, SHARE, claims, table, table_by_dataset
from pipelines.report.collect import Folders, Inputs, collect
from store.format.pretraining import JOINT, LABELS
from tests.pipelines.report.written import several_labels, write_attention, write_correct, write_probe

N = 1000


def write(
    root: Path, encoder: str, cls: float, abmilp: float, n_seeds: int = 3, by_image: bool = True, spread: float = 0.1
) -> None:
    """Both heads; head h is right about the first images, so many percent, more or fewer by seed."""
    for head, top1 in (("cls", cls), ("abmilp", abmilp)):
        folder = write_probe(root / "p", encoder, head, top1, std=spread, seeds=tuple(range(n_seeds)))
        if by_image:
            rates = top1 + spread * np.linspace(-1, 1, n_seeds) if n_seeds > 1 else np.array([top1])
            write_correct(folder, (np.arange(N) + 0.5) / N < rates[:, None] / 100)


def inputs_of(root: Path) -> Inputs:
    return collect(Folders(root / "p", root / "a"))


def of(root: Path) -> dict[str, Any]:
    return {claim.name: claim for claim in claims(inputs_of(root))}


def states(root: Path) -> dict[str, str]:
    return {name: claim.verdict for name, claim in of(root).items()}


def test_where_all_holds(tmp_path: Path) -> None:
    for encoder, heads in {"mae": (60, 66), "dino": (70, 70.2), "deit": (80, 80), "random": (40, 42)}.items():
        write(tmp_path, encoder, *heads)
    assert set(states(tmp_path).values()) == {"holds"}
    assert list(of(tmp_path)) == [AHEAD, NO_MORE[JOINT], NO_MORE[LABELS], MORE[JOINT], MORE[LABELS], BEYOND]
    more = of(tmp_path)[MORE[JOINT]]
    assert more.of == "mae − dino"
    assert more.estimates[POINTS].mean == pytest.approx(6 - 0.2)
    assert more.estimates[SHARE].mean == pytest.approx(100 * (6 / 40 - 0.2 / 30))


def test_what_is_contradicted(tmp_path: Path) -> None:
    for encoder, heads in {"mae": (66, 60), "dino": (70, 75), "random": (40, 48)}.items():
        write(tmp_path, encoder, *heads)
    assert states(tmp_path) == dict.fromkeys((AHEAD, NO_MORE[JOINT], MORE[JOINT], BEYOND), "contradicted")


def test_what_the_interval_leaves_open_is_not_shown(tmp_path: Path) -> None:
    """A gain that is not clear may still be there: 0.6 points may be 1.1."""
    write(tmp_path, "mae", 60, 60.2)
    write(tmp_path, "dino", 70, 70.6)
    assert states(tmp_path) == dict.fromkeys((AHEAD, NO_MORE[JOINT], MORE[JOINT]), "not shown")


@pytest.mark.parametrize(("n_seeds", "by_image", "spread"), [(1, True, 0.1), (3, False, 0.1), (2, True, 9)])
def test_without_seeds_or_images_or_where_seeds_disagree_nothing_is_shown(
    tmp_path, n_seeds: int, by_image: bool, spread: float
):
    for encoder, heads in {"mae": (60, 66), "dino": (70, 80)}.items():
        write(tmp_path, encoder, *heads, n_seeds, by_image, spread)
    assert set(states(tmp_path).values()) == {"not shown"}


def test_the_verdict_on_a_difference_of_gains_does_not_hang_on_the_scale(tmp_path: Path) -> None:
    """5 points at 85 are more log-odds than 10 points at 40, and fewer points."""
    write(tmp_path, "mae", 85, 90)
    write(tmp_path, "random", 40, 50)
    claim = of(tmp_path)[BEYOND]
    assert claim.estimates[POINTS].sign == -1
    assert claim.verdict == "not shown"


def test_several_encoders_are_averaged_and_are_the_unit(tmp_path: Path) -> None:
    for encoder, gain in (("mae", 2), ("simmim", 6)):
        write(tmp_path, encoder, 60, 60 + gain)
    claim = of(tmp_path)[AHEAD]
    assert (claim.of, claim.estimates[POINTS].mean) == ("mae, simmim", pytest.approx(4))
    assert claim.verdict == "not shown"  # 4 ± t(1) · 2, though both are clearly ahead
    for encoder, gain in (("mae-b16", 4), ("quickstart-mae", 4)):
        write(tmp_path, encoder, 60, 60 + gain)
    assert states(tmp_path) == {AHEAD: "holds"}


def test_the_twin_is_that_of_the_masked_encoder(tmp_path: Path) -> None:
    for encoder, architecture in (("mae", 1), ("dino", 1), ("a-twin", 2), ("b-twin", 1)):
        write(tmp_path, encoder, 40, 45)
        file = write_attention(tmp_path / "a", encoder, "d") / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"architecture": {"depth": architecture}}))
    assert of(tmp_path)[BEYOND].of == "mae − b-twin"


def test_average_precision_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    write(tmp_path, "mae", 40, 60)
    for folder in tmp_path.glob("p/mae/*"):
        several_labels(folder)
    claim = of(tmp_path)[AHEAD]
    assert (claim.verdict, list(claim.estimates), claim.estimates[POINTS].interval) == ("not shown", [POINTS], None)


def entropies(root: Path, encoder: str, blocks: tuple[float, ...], n_tokens: int = 64, std: float = 0.1) -> None:
    folder = write_attention(root / "a", encoder, "d", n_tokens)
    with (folder / "statistics.csv").open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(("statistic", "block", "mean", "std"))
        writer.writerows(("cls_patch_entropy", block, mean, std) for block, mean in enumerate(blocks))


@pytest.mark.parametrize(
    ("masked", "joint", "last", "over_all"),
    [
        ((3.0, 4.0), (2.0, 3.0), "holds", "holds"),
        ((3.9, 3.0), (2.0, 3.5), "contradicted", "holds"),
        ((1.0, 2.0), (2.0, 3.0), "contradicted", "contradicted"),
        ((3.0, 3.0), (2.0, 2.99), "not shown", "holds"),
    ],
)
def test_entropies_are_compared_over_images(tmp_path: Path, masked, joint, last: str, over_all: str) -> None:
    write_probe(tmp_path / "p", "mae", "average", 1.0)
    entropies(tmp_path, "mae", masked)
    entropies(tmp_path, "dino", joint)
    measured = of(tmp_path)
    assert [measured[EVEN[where]].verdict for where in ("last block", "all blocks")] == [last, over_all]
    estimate = measured[EVEN["last block"]].estimates[NATS]
    assert estimate.mean == pytest.approx(masked[1] - joint[1])
    assert estimate.error is not None
    assert estimate.error[0] == pytest.approx(0.1 * np.sqrt(2 / 7), rel=0.1)  # of 7 images each


def test_entropies_of_other_grids_or_of_one_family_are_not_compared(tmp_path: Path) -> None:
    write_probe(tmp_path / "p", "mae", "average", 1.0)
    for encoder, n_tokens in (("mae", 64), ("dino", 16)):
        entropies(tmp_path, encoder, (3.0, 4.0), n_tokens)
        assert table(inputs_of(tmp_path)) is None


def test_the_table_has_what_was_measured(tmp_path: Path) -> None:
    write(tmp_path, "mae", 60, 66)
    write(tmp_path, "dino", 70, 69)
    result = table(inputs_of(tmp_path))
    assert result is not None
    names = ["claim", "encoders", "verdict", "points", "points_interval", "share", "share_interval"]
    assert [column.name for column in result.columns] == names
    (row,) = (row for row in result.rows if row.cells[0].text == NO_MORE[JOINT])
    assert [cell.text for cell in row.cells[1:4]] == ["dino", "holds", "−1.0"]
    low, high = (float(part.replace("−", "-")) for part in row.cells[4].text.split(" to "))
    assert low < -1 < high < 1


def test_data_sets_count_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "one", "mae", 60, 66)
    write(tmp_path / "two", "mae", 66, 60)
    result = table_by_dataset({name: inputs_of(tmp_path / name).probes for name in ("one", "two")})
    assert result is not None
    assert [(row.group, row.cells[2].text) for row in result.rows] == [("one", "holds"), ("two", "contradicted")]
    assert table_by_dataset({"none": {}}) is None
