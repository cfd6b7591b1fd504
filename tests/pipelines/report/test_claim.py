import csv
from pathlib import Path

import pytest

from pipelines.report.claim import claim
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Text
from pipelines.report.families import JOINT, MASKED, family
from pipelines.report.lead import lead
from tests.pipelines.report.written import write_attention, write_probe


def heads(root: Path, encoder: str, cls: float, abmilp: float, seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    for head, top1 in (("cls", cls), ("abmilp", abmilp)):
        write_probe(root / "p", encoder, head, top1, seeds=seeds)


def entropies(root: Path, encoder: str, blocks: tuple[float, ...], n_tokens: int = 64) -> None:
    folder = write_attention(root / "a", encoder, "d", n_tokens)
    with (folder / "statistics.csv").open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(("statistic", "block", "mean", "std"))
        writer.writerows(("cls_patch_entropy", block, mean, 0.1) for block, mean in enumerate(blocks))


def inputs_of(root: Path) -> Inputs:
    return collect(Folders(root / "p", root / "a"))


def told(found: list[Text]) -> str:
    return " ".join(text for finding in found for text in (finding.text, *finding.items)).replace("\xa0", " ")


@pytest.mark.parametrize(
    ("masked", "joint", "expected"),
    [
        (
            (40, 45),
            (45, 44),
            (
                "The first half holds on mae-b16; the second half holds on dino-b16",
                "gains more on",
                "+6.0 ± 1.0 points more on mae-b16 than on dino-b16, 6.0 standard deviations",
            ),
        ),
        (
            (40, 40.5),
            (40, 45),
            (
                "The first half does not hold on mae-b16; the second half does not hold on dino-b16",
                "not more on",
                "−4.5 ± 1.0",
                "−4.5 standard deviations",
            ),
        ),
        ((40, 45), (40, 42), ("The first half holds on mae-b16; the second half does not hold on dino-b16", "gains more on")),
    ],
)
def test_each_half_is_judged_by_the_spread(tmp_path: Path, masked: tuple[float, float], joint: tuple[float, float], expected):
    heads(tmp_path, "mae-b16", *masked)
    heads(tmp_path, "dino-b16", *joint)
    heads(tmp_path, "random", 10, 20)
    text = told(claim(inputs_of(tmp_path)))
    assert all(part in text for part in expected), text
    assert f"masked image modelling: {masked[1] - masked[0]:+.1f} ± 0.7 on mae-b16" in text
    assert "random" not in text


def test_one_seed_and_one_kind_are_said(tmp_path: Path):
    heads(tmp_path, "mae", 40, 60, seeds=(0,))
    text = told(claim(inputs_of(tmp_path)))
    assert "one seed, so neither half can be judged" in text
    assert "joint embedding: no such encoder here" in text
    assert "gains" not in text


def test_the_least_lead_of_several_encoders_counts(tmp_path: Path):
    for encoder, abmilp in (("mae", 45), ("simmim", 43), ("dino", 41), ("mocov3", 40)):
        heads(tmp_path, encoder, 40, abmilp)
    found = lead(inputs_of(tmp_path).probes)
    assert found is not None
    assert (found.masked, found.joint) == ("simmim", "dino")
    assert found.points.mean == pytest.approx(2)
    assert found.points.std == pytest.approx(1)  # of four heads with 0.5 each
    assert found.deviations == pytest.approx(2)


def test_one_seed_has_no_deviations(tmp_path: Path):
    heads(tmp_path, "mae", 40, 45, seeds=(0,))
    heads(tmp_path, "dino", 40, 41)
    found = lead(inputs_of(tmp_path).probes)
    assert found is not None
    assert found.deviations is None
    assert found.told() == "+4.0 points more on mae than on dino"


def test_nothing_is_claimed_of_unknown_encoders(tmp_path: Path):
    heads(tmp_path, "mine", 40, 60)
    assert claim(inputs_of(tmp_path)) == []


@pytest.mark.parametrize(
    ("masked", "joint", "expected"),
    [
        ((3.0, 4.0), (2.0, 3.0), "Here that holds in the last block and holds over all blocks."),
        ((3.9, 3.0), (2.0, 3.5), "Here that does not hold in the last block and holds over all blocks."),
        ((1.0, 2.0), (2.0, 3.0), "Here that does not hold in the last block and does not hold over all blocks."),
    ],
)
def test_entropies_are_ordered_as_measured(tmp_path: Path, masked, joint, expected: str):
    write_probe(tmp_path / "p", "mae", "average", 1.0)
    entropies(tmp_path, "mae", masked)
    entropies(tmp_path, "dino", joint)
    text = told(claim(inputs_of(tmp_path)))
    assert expected in text
    mean = sum(masked) / 2
    assert f"mae: {masked[1]:.2f} in the last block, {mean:.2f} over all blocks, of at most ln T = 4.16" in text


def test_entropies_of_different_grids_are_not_compared(tmp_path: Path):
    write_probe(tmp_path / "p", "mae", "average", 1.0)
    entropies(tmp_path, "mae", (3.0, 4.0))
    entropies(tmp_path, "dino", (2.0, 3.0), n_tokens=16)
    assert "different numbers of patches, so their entropies are not compared" in told(claim(inputs_of(tmp_path)))


def test_one_kind_alone_is_told_without_an_order(tmp_path: Path):
    write_probe(tmp_path / "p", "mae", "average", 1.0)
    entropies(tmp_path, "mae", (3.0, 4.0))
    assert "not both kinds of encoders here" in told(claim(inputs_of(tmp_path)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("quickstart-mae", MASKED),
        ("vit_base_patch16_224.mae", MASKED),
        ("beitv2-b16", MASKED),
        ("quickstart-mocov3", JOINT),
        ("moco-v3-b16", JOINT),
        ("ibot-b16", JOINT),
        ("mae-ft-b16", None),
        ("random-mae", None),
        ("dinov2-b14", None),
        ("mae-dino", None),
        ("mine", None),
    ],
)
def test_family_by_name(name: str, kind: str | None):
    assert family(name) == kind
