import csv
import json
from pathlib import Path

import pytest

from pipelines.report.claim import claim, lead_on_page
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Text
from store.format.pretraining import JOINT, MASKED, Pretraining
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


def text_of(findings: list[Text]) -> str:
    return " ".join(text for finding in findings for text in (finding.text, *finding.items)).replace("\xa0", " ")


def test_the_claim_and_what_it_rests_on_are_one_finding(tmp_path: Path):
    heads(tmp_path, "mae-b16", 40, 45)
    heads(tmp_path, "dino-b16", 45, 44)
    heads(tmp_path, "random", 10, 20)
    heads(tmp_path, "mine", 20, 70)  # nobody knows how it was trained
    (result,) = claim(inputs_of(tmp_path))
    text = text_of([result])
    assert "mine" not in text
    assert "AbMILP removes 8.3 ± 1.1 % (+5.0 ± 0.7 points) on mae-b16 and −1.8 ± 1.3 % (−1.0 ± 0.7 points) on dino-b16" in text
    assert "The interval over test images is missing" in text
    assert [item.partition(":")[0] for item in result.items] == [
        "As the paper says",
        "Not clearly more than selection alone explains",
    ]


def test_one_kind_alone_is_no_claim(tmp_path: Path):
    heads(tmp_path, "mae", 40, 60)
    assert claim(inputs_of(tmp_path)) == []


def test_the_twin_is_that_of_the_masked_encoder(tmp_path: Path):
    for encoder, architecture in (("mae", 1), ("dino", 1), ("a-twin", 2), ("b-twin", 1)):
        heads(tmp_path, encoder, 40, 45)
        file = write_attention(tmp_path / "a", encoder, "d") / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"architecture": {"depth": architecture}}))
    result = lead_on_page(inputs_of(tmp_path))
    assert result is not None
    assert result.twin == "b-twin"


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
    text = text_of(claim(inputs_of(tmp_path)))
    assert expected in text
    mean = sum(masked) / 2
    assert f"mae: {masked[1]:.2f} in the last block, {mean:.2f} over all blocks, of at most ln T = 4.16" in text


def test_entropies_of_different_grids_are_not_compared(tmp_path: Path):
    write_probe(tmp_path / "p", "mae", "average", 1.0)
    entropies(tmp_path, "mae", (3.0, 4.0))
    entropies(tmp_path, "dino", (2.0, 3.0), n_tokens=16)
    assert "different numbers of patches, so their entropies are not compared" in text_of(claim(inputs_of(tmp_path)))


def test_entropies_of_one_kind_alone_have_no_order(tmp_path: Path):
    write_probe(tmp_path / "p", "mae", "average", 1.0)
    entropies(tmp_path, "mae", (3.0, 4.0))
    assert "The encoders here are not of both kinds" in text_of(claim(inputs_of(tmp_path)))


def test_the_claim_is_about_what_encoders_are_not_what_they_are_called(tmp_path: Path):
    heads(tmp_path, "mae", 40, 45)
    heads(tmp_path, "dino", 45, 44)
    heads(tmp_path, "random", 10, 20)
    for file in tmp_path.glob("p/*/*/metrics.json"):
        turned = {"mae": Pretraining(JOINT), "dino": Pretraining(random_seed=3), "random": Pretraining(MASKED)}
        file.write_text(json.dumps(json.loads(file.read_text()) | turned[file.parts[-3]].to_dict()))
    result = lead_on_page(inputs_of(tmp_path))
    assert result is not None
    assert (result.masked, result.joint, result.twin) == ("random", "mae", "dino")
