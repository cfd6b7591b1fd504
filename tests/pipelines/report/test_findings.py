import json
from pathlib import Path

from pipelines.report.collect import Folders, collect
from pipelines.report.content import Text
from pipelines.report.sections.findings import NO_TWIN, caution, section, warnings
from tests.pipelines.report.written import shown, tables, words, write_all, write_probe


def heads(folder: Path, encoder: str, cls: float, abmilp: float, **options: object) -> None:
    write_probe(folder, encoder, "cls", cls, **options)  # type: ignore[arg-type]
    write_probe(folder, encoder, "abmilp", abmilp, **options)  # type: ignore[arg-type]


def test_every_head_is_compared_with_the_random_twin(tmp_path: Path):
    result = section(collect(Folders(write_all(tmp_path)["probes"])))
    (above,) = tables(result).values()
    kinds = [block.kind for block in result.blocks if isinstance(block, Text)]
    assert (above.name, above.folded, kinds) == ("above-twin", True, ["note"])
    assert shown(above, slice(4)) == [
        ["mae", "[cls]", "random", "+12.2 ± 0.7"],
        ["mae", "average", "random", "+13.5 ± 0.7"],
        ["mae", "AbMILP", "random", "+15.0 ± 0.7"],
    ]


def test_says_what_cannot_be_said(tmp_path: Path):
    write_probe(tmp_path, "mae", "cls", 40.0)
    assert NO_TWIN in " ".join(words(section(collect(Folders(tmp_path)))))


def test_caution_gives_the_error_of_the_test_images_and_names_encoders_that_saw_labels(tmp_path: Path):
    heads(tmp_path, "mae", 20.0, 50.0, n_test=100)
    text = caution(collect(Folders(tmp_path)))
    assert "about 5.0 points" in text  # √(0.5 · 0.5 / 100)
    assert "Labels" not in text
    heads(tmp_path, "deit", 70.0, 70.0)
    assert "Labels went into deit" in caution(collect(Folders(tmp_path)))


def test_warns_of_what_is_not_comparable(tmp_path: Path):
    paths = write_all(tmp_path)
    assert warnings(collect(Folders(paths["probes"], paths["attention"]))) == []
    file = paths["probes"] / "mae" / "cls" / "description.json"
    metrics = json.loads(file.read_text())
    metrics["features"]["test"] = "other"
    metrics["recipe"]["epochs"] = 3
    metrics["n_test"] = 6
    file.write_text(json.dumps(metrics))
    result = " ".join(warnings(collect(Folders(paths["probes"], paths["attention"]))))
    assert all(part in result for part in ("heads of mae", "different feature sets", "same recipe", "same images"))


def test_the_section_warns_of_attention_on_another_feature_set(tmp_path: Path):
    paths = write_all(tmp_path)
    file = paths["attention"] / "mae" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"key": "other"}))
    _, *items = words(section(collect(Folders(paths["probes"], paths["attention"]))), "notice")
    assert ["attention of mae" in item for item in items] == [True]
