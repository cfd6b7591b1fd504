import json
from pathlib import Path

from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Text
from pipelines.report.sections.findings import caution, findings, section, warnings
from tests.pipelines.report.written import write_all, write_probe


def heads(folder: Path, encoder: str, cls: float, abmilp: float, **options: object) -> None:
    write_probe(folder, encoder, "cls", cls, **options)  # type: ignore[arg-type]
    write_probe(folder, encoder, "abmilp", abmilp, **options)  # type: ignore[arg-type]


def text_of(inputs: Inputs) -> str:
    return " ".join(text for finding in findings(inputs) for text in (finding.text, *finding.items)).replace("\xa0", " ")


def test_says_who_is_ahead_and_where_nothing_shows(tmp_path: Path):
    heads(tmp_path, "up", 40.0, 45.0)
    heads(tmp_path, "down", 45.0, 40.0)
    heads(tmp_path, "even", 40.0, 41.0)  # spread of the difference: 0.7
    text = text_of(collect(Folders(tmp_path, tmp_path / "none")))
    assert "−5.0 ± 0.7 points on down, +1.0 ± 0.7 points on even and +5.0 ± 0.7 points on up" in text
    assert "AbMILP is clearly ahead on up; [cls] is clearly ahead on down; no clear difference shows on even." in text
    assert "Clear is what is beyond twice the spread over seeds and beyond the interval over test images" in text


def test_one_seed_proves_nothing(tmp_path: Path):
    heads(tmp_path, "mae", 40.0, 60.0, seeds=(0,))
    text = text_of(collect(Folders(tmp_path, tmp_path / "none")))
    assert "+20.0 points on mae" in text
    assert "spread over seeds is unknown" in text
    assert "ahead" not in text


def test_every_head_is_compared_with_the_random_twin(tmp_path: Path):
    paths = write_all(tmp_path)
    text = text_of(collect(Folders(paths["probes"], paths["attention"])))
    assert "untrained twin random" in text
    assert "mae: +12.2 ± 0.7 ([cls]), +13.5 ± 0.7 (average) and +15.0 ± 0.7 (AbMILP)" in text


def test_says_what_cannot_be_said(tmp_path: Path):
    write_probe(tmp_path, "mae", "cls", 40.0)
    text = text_of(collect(Folders(tmp_path, tmp_path / "none")))
    assert "cannot be compared" in text
    assert "An untrained twin to compare the trained encoders with is missing" in text


def test_caution_gives_the_error_of_the_test_images(tmp_path: Path):
    heads(tmp_path, "mae", 20.0, 50.0, n_test=100)
    text = caution(collect(Folders(tmp_path, tmp_path / "none")))
    assert "50 training and 100 test images of 3 classes, 3 seeds" in text
    assert "about 5.0 points" in text  # √(0.5 · 0.5 / 100)


def test_caution_names_encoders_that_saw_labels(tmp_path: Path):
    heads(tmp_path, "mae", 20.0, 50.0)
    assert "Labels" not in caution(collect(Folders(tmp_path, tmp_path / "none")))
    heads(tmp_path, "deit", 70.0, 70.0)
    text = caution(collect(Folders(tmp_path, tmp_path / "none")))
    assert "Labels went into deit: where they are those of these training images, heads learn from features that fit" in text


def test_warns_of_what_is_not_comparable(tmp_path: Path):
    paths = write_all(tmp_path)
    assert warnings(collect(Folders(paths["probes"], paths["attention"]))) == []
    file = paths["probes"] / "mae" / "cls" / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["features"]["test"] = "other"
    metrics["recipe"]["epochs"] = 3
    metrics["n_test"] = 6
    file.write_text(json.dumps(metrics))
    result = " ".join(warnings(collect(Folders(paths["probes"], paths["attention"]))))
    assert "The heads of mae were trained or tested on different feature sets" in result
    assert "same recipe" in result
    assert "same images" in result


def test_the_section_holds_findings_caution_and_warnings(tmp_path: Path):
    paths = write_all(tmp_path)
    result = section(collect(Folders(paths["probes"], paths["attention"])))
    kinds = [block.kind for block in result.blocks if isinstance(block, Text)]
    assert (result.anchor, kinds[-1], set(kinds[:-1])) == ("findings", "note", {"finding"})
    file = paths["attention"] / "mae" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"key": "other"}))
    last = section(collect(Folders(paths["probes"], paths["attention"]))).blocks[-1]
    assert isinstance(last, Text)
    assert (last.kind, len(last.items)) == ("notice", 1)
    assert "attention of mae" in last.items[0]
