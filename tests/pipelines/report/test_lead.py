"""What AbMILP gains on masked, joint-embedding and untrained encoders, and what is said of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.report.collect import Folders, collect
from pipelines.report.estimate import Probes
from pipelines.report.gains import basis, contrasts_of_depth, gains, table
from pipelines.report.lead import Lead, headline, lead, verdicts
from tests.pipelines.report.written import several_labels, write_correct, write_probe

N = 1000


def write(root: Path, encoder: str, cls: float, abmilp: float, average: float | None = None, images: str = "") -> None:
    """Three heads of one encoder; with `images`, known image by image: each head is right on the first ones."""
    for head, top1 in (("cls", cls), ("abmilp", abmilp), ("average", average)):
        if top1 is not None:
            folder = write_probe(root, encoder, head, top1)
            if images:
                rates = top1 / 100 + np.array([[-0.001], [0.0], [0.001]])
                write_correct(folder, (np.arange(N) + 0.5) / N < rates, images)


def probes_of(root: Path) -> Probes:
    return collect(Folders(root, root / "none")).probes


def lead_of(root: Path, twin: str | None = None) -> Lead:
    result = lead(probes_of(root), twin)
    assert result is not None
    return result


def verdicts_of(root: Path) -> dict[str, str]:
    return {verdict: "; ".join(parts).replace("\xa0", " ") for verdict, parts in verdicts(lead_of(root)).items()}


def test_the_least_lead_of_several_encoders_counts(tmp_path: Path) -> None:
    for encoder, abmilp in (("mae", 45), ("simmim", 43), ("dino", 41), ("mocov3", 40), ("a-twin", 44), ("b-twin", 42)):
        write(tmp_path, encoder, 40, abmilp)
    result = lead_of(tmp_path)
    assert (result.masked, result.joint, result.twin) == ("simmim", "dino", "a-twin")
    more = result.more("dino")
    assert more is not None
    assert more.share is not None
    assert (more.points.mean, more.points.std) == (pytest.approx(2), pytest.approx(1))  # of four heads with 0.5 each
    assert more.share.mean == pytest.approx(100 * (3 - 1) / 60)
    assert lead_of(tmp_path, "b-twin").twin == "b-twin"
    assert result.more("dino", "average") is None


def test_a_gain_is_said_in_points_and_as_share_of_the_errors_with_the_twin_beside(tmp_path: Path) -> None:
    for encoder, heads in (("mae", (60, 65, 62)), ("dino", (70, 71, 72)), ("random", (40, 46, 41))):
        write(tmp_path, encoder, *heads)
    over_cls, over_average = headline(lead_of(tmp_path), lambda name: f"the {name}").replace("\xa0", " ").split(". Of")
    assert over_cls == (
        "Of the errors that [cls] makes, AbMILP removes 12.5 ± 1.7 % (+5.0 ± 0.7 points) on the mae and 3.3 ± 2.3 % (+1.0 ± "
        "0.7 points) on the dino; selection alone explains 10.0 ± 1.1 % (+6.0 ± 0.7 points), as on the random, which was never "
        "trained"
    )
    assert over_average.startswith(" the errors that the average patch makes, AbMILP removes 7.9 ± 1.8 % (+3.0 ± 0.7 points)")


def test_intervals_over_test_images_stand_beside_the_spread_and_decide(tmp_path: Path) -> None:
    for encoder, heads in (("mae", (60, 66)), ("dino", (70, 70.5)), ("random", (40, 46))):
        write(tmp_path, encoder, *heads, images="i")
    result = lead_of(tmp_path)
    gain, text = result.gains["mae", "cls"], headline(result).replace("\xa0", " ")
    assert gain.share is not None
    assert gain.share.interval is not None
    assert gain.share.interval == pytest.approx((11.3, 18.8), abs=0.6)  # 15 ± 1.96 √(0.15 · 0.85 / 400)
    assert f"15.0 ± 0.3 % [{gain.share.bounds()}] (+6.0 ± 0.1 points [{gain.points.bounds()}]) on mae" in text
    statements = verdicts_of(tmp_path)
    assert "AbMILP is ahead of [cls] on mae" in statements["As the paper says"]
    # 0.5 points are beyond twice the spread over seeds, 0.28, and five images of 1,000 beyond zero
    assert statements["Not as the paper says"] == "AbMILP is ahead of [cls] on dino, too"
    assert "over [cls] AbMILP gains more on mae than on dino, +5.5 ± 0.2 points [" in statements["As the paper says"]
    assert "more on mae than on random, +5.0 ± 0.4 percentage points" in statements["More than selection alone explains"]
    assert "on mae than on random, 0.0 ± 0.2 points [" in statements["Not clearly more than selection alone explains"]


def test_a_difference_within_the_interval_is_not_as_the_paper_says(tmp_path: Path) -> None:
    for encoder, heads in (("mae", (60, 61)), ("dino", (70, 70.5)), ("random", (40, 40.1))):
        write(tmp_path, encoder, *heads, images="i")
    more = lead_of(tmp_path).more("dino")
    assert more is not None
    assert more.points.mean > 2 * more.points.std  # by seeds alone it would be
    assert (
        "AbMILP does not clearly gain more on mae than on dino, +0.5 ± 0.2 points ["
        in verdicts_of(tmp_path)["Not as the paper says"]
    )


def test_what_fails_is_named(tmp_path: Path) -> None:
    for encoder, heads in (("mae", (40, 40.5, 40)), ("dino", (40, 45, 40))):
        write(tmp_path, encoder, *heads)
    assert verdicts_of(tmp_path) == {
        "Not as the paper says": "AbMILP is ahead of [cls] on dino, too; AbMILP is not clearly ahead of [cls] on mae; "
        "over [cls] AbMILP gains less on mae than on dino, −4.5 ± 1.0 points and −7.5 ± 1.6 percentage points of the errors; "
        "over the average patch AbMILP gains less on mae than on dino, −4.5 ± 1.0 points and −7.5 ± 1.6 percentage points of "
        "the errors"
    }


def test_encoders_that_saw_labels_are_compared_with_the_masked_one(tmp_path: Path) -> None:
    """The one that gains most counts; the headline stays with the two kinds that the claim is about."""
    for encoder, heads in (("mae", (40, 45, 41)), ("dino", (50, 50, 50)), ("deit", (70, 70.1, 70)), ("random", (10, 10, 10))):
        write(tmp_path, encoder, *heads)
    result = lead_of(tmp_path)
    assert (result.labelled, result.others) == ("deit", ["dino", "deit", "random"])
    assert ("mae − deit", "mae", "deit") in result.contrasts
    assert "deit" not in headline(result)
    statements = verdicts_of(tmp_path)
    assert "AbMILP is not clearly ahead of [cls] on deit; " in statements["As the paper says"]
    assert "over [cls] AbMILP gains more on mae than on deit, +4.9 ± 1.0 points and " in statements["As the paper says"]
    assert "deit" not in "".join(text for verdict, text in statements.items() if verdict != "As the paper says")
    write(tmp_path, "deit-l", 40, 60)
    statements = verdicts_of(tmp_path)
    assert "AbMILP is ahead of [cls] on deit-l, too; " in statements["Not as the paper says"]
    assert "over [cls] AbMILP gains less on mae than on deit-l, −15.0 ± 1.0 points and " in statements["Not as the paper says"]


def test_average_precision_has_no_interval(tmp_path: Path) -> None:
    for head, value in (("cls", 40.0), ("abmilp", 45.0)):
        several_labels(write_probe(tmp_path, "mae", head, value))
    assert basis(probes_of(tmp_path))[-1].endswith("it has no share of errors and no interval.")


def test_one_seed_is_not_judged(tmp_path: Path) -> None:
    for encoder in ("mae", "dino"):
        for head, top1 in (("cls", 40.0), ("abmilp", 45.0)):
            write_probe(tmp_path, encoder, head, top1, seeds=(0,))
    assert verdicts_of(tmp_path) == {
        "Not to be judged with one seed": "whether AbMILP is ahead of [cls] on dino; whether AbMILP is ahead of [cls] on mae; "
        "over [cls] whether AbMILP gains more on mae than on dino, 0.0 points and 0.0 percentage points of the errors"
    }


def test_what_the_numbers_rest_on_is_said(tmp_path: Path) -> None:
    write(tmp_path, "mae", 40, 45)
    text = " ".join(basis(probes_of(tmp_path)))
    assert "one order" not in text
    assert "interval over test images is missing" in text
    assert "trained/correct.npz and test_images in description.json); probe them again" in text
    write(tmp_path / "with", "mae", 40, 45, images="i")
    for file in (tmp_path / "with").glob("*/*/metrics.json"):
        file.write_text(file.read_text().replace('"epochs": 2', '"epochs": 2, "order": "shared"'))
    text = " ".join(basis(probes_of(tmp_path / "with")))
    assert "in one order and differ in where the head starts alone, so it leaves out what the order" in text
    assert "Intervals are 95 % over test images (paired bootstrap, 10,000 resamples" in text
    assert "missing" not in text
    assert "not paired" not in text
    write(tmp_path / "with", "dino", 40, 45, images="others")
    assert "tested on different images are not paired, and have no interval" in " ".join(basis(probes_of(tmp_path / "with")))


def test_encoders_that_differ_in_stochastic_depth_alone_are_subtracted(tmp_path: Path) -> None:
    """Not those that were measured on other features, or trained on another number of crops or from another start."""
    crops: dict[str, Any] = {
        "plain": ("same", {"n_crops": 4}),
        "dropped": ("same", {"n_crops": 4, "drop_path": 0.1}),
        "few": ("same", {"n_crops": 2, "drop_path": 0.1}),
        "other": ("others", {"n_crops": 4, "drop_path": 0.1}),
        "small": ("same", {"n_crops": 4, "drop_path": 0.1}),
        "none": ("same", {"n_crops": 0}),
    }
    for encoder, (test, augmentation) in crops.items():
        for head, top1 in (("cls", 60), ("abmilp", 66 + 2 * ("drop_path" in augmentation))):
            features = {"training": encoder, "test": test}
            init = "small" if encoder == "small" else "normal"
            folder = write_probe(tmp_path, encoder, head, top1, features=features, augmentation=augmentation, init=init)
            write_correct(folder, (np.arange(N) + 0.5) / N < top1 / 100 + np.array([[-0.001], [0.0], [0.001]]))
    contrasts = contrasts_of_depth(probes_of(tmp_path))
    assert contrasts == [("dropped − plain", "dropped", "plain")]
    gains_table = table(probes_of(tmp_path), contrasts)
    assert gains_table is not None
    (row,) = (row for row in gains_table.rows if row.cells[0].text == "dropped − plain")
    points = gains(probes_of(tmp_path))["dropped", "cls"].minus(gains(probes_of(tmp_path))["plain", "cls"]).points
    assert [cell.text for cell in row.cells[1:3]] == ["+2.0 ± 0.2", points.bounds()]
    assert points.interval is not None


def test_the_table_has_encoders_and_contrasts(tmp_path: Path) -> None:
    for encoder, heads in (("mae", (60, 66, 62)), ("dino", (70, 71, 72)), ("random", (40, 46, 41))):
        write(tmp_path, encoder, *heads, images="i")
    gains_table = table(probes_of(tmp_path), lead_of(tmp_path).contrasts)
    assert gains_table is not None
    shown = [[row.group, *(cell.text for cell in row.cells)] for row in gains_table.rows]
    assert [row[:2] for row in shown] == [
        [f"over {head}", name]
        for head in ("[cls]", "the average patch")
        for name in ("dino", "mae", "random", "mae − dino", "mae − random")
    ]
    of_mae = gains(probes_of(tmp_path))["mae", "cls"]
    assert of_mae.share is not None
    assert shown[1][2:] == ["+6.0 ± 0.1", of_mae.points.bounds(), "+15.0 ± 0.3", of_mae.share.bounds()]
    assert shown[4][2] == "0.0 ± 0.2"
    assert [row.muted for row in gains_table.rows[:5]] == [False, False, True, False, False]
    write_probe(tmp_path / "alone", "mae", "cls", 40.0)
    assert table(probes_of(tmp_path / "alone")) is None


def test_gains_of_converged_classifiers_stand_below_those_of_trained_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    right = {head: rng.random((2, 200)) < share for head, share in (("cls", 0.3), ("average", 0.4), ("abmilp", 0.5))}
    converged = {head: rng.random((2, 200)) < share for head, share in (("cls", 0.6), ("abmilp", 0.7))}
    for head, correct in right.items():
        write_correct(write_probe(tmp_path, "mae", head, 0.0), correct, converged=converged.get(head))
    gains_table = table(probes_of(tmp_path))
    assert gains_table is not None
    by_group = {row.group: row.cells for row in gains_table.rows}
    trained, both = by_group["over [cls]"], by_group["over [cls], both with a converged classifier"]
    assert trained[1].value == pytest.approx(100 * (right["abmilp"].mean() - right["cls"].mean()))
    assert both[1].value == pytest.approx(100 * (converged["abmilp"].mean() - converged["cls"].mean()))
    assert len(by_group) == 3  # nothing was fitted beside the average patch
    assert trained[2].text != both[2].text  # intervals are of their own images
