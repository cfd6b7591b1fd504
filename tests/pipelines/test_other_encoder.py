"""No command that measures an encoder takes the place of another encoder's results."""

import json
from pathlib import Path

import pytest

from tests.features import write_features

TEST, PAIRS = ("--test", "SET"), ("--pairs", "NONE.csv")
# Options that are needed; what they name is looked at later.
COMMANDS: dict[str, tuple[str, ...]] = {
    "attention": (),
    "blocks": TEST,
    "correspond": PAIRS,
    "depth": (*TEST, "--maps", "NONE", "--test-maps", "NONE"),
    "few-shot": TEST,
    "geometry": (),
    "localise": (),
    "norms": (),
    "probe": (*TEST, "--head", "cls"),
    "segment": TEST,
    "track": ("--masks", "NONE"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_results_of_another_encoder_stay(name: str, beyondcls, tmp_path: Path):
    features, out = write_features(tmp_path / "set").path, tmp_path / "out"
    out.mkdir()
    for file in ("description.json", "summary.json"):
        (out / file).write_text(json.dumps({"encoder": "another"}))
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    given = [str(features) if value == "SET" else value for value in COMMANDS[name]]
    said = beyondcls(name, "--features", features, "--out", out, *given, fails=True)
    assert "holds a result of encoder another" in said
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
