"""Heads that a study has no more are removed, and nothing else."""

import json

import pytest

from pipelines.probing.training import remove_left_heads
from tests.pipelines.report.written import describe

COMMAND = "beyondcls probe --params params.yaml --study pair --out 'a folder'"


@pytest.fixture
def out(tmp_path):
    """A folder with heads, by what their metrics.json holds; each with all files that are written."""

    def write(**metrics):
        for name, content in metrics.items():
            (tmp_path / name / "trained").mkdir(parents=True)
            files = ("seed0.json", "seed0.safetensors", "weights.npy", "correct.npz", "record.json")
            for file in (*(f"trained/{file}" for file in files), "curves.csv", "timing.json", "kept.json", "description.json"):
                (tmp_path / name / file).touch()
            describe(tmp_path / name / "metrics.json", json.dumps(content))
        return tmp_path

    return write


def removed(out):
    before = {p.name for p in out.iterdir()}
    names = [folder.name for folder in remove_left_heads(out, "pair", ("here",), ("pair", "other"))]
    assert {p.name for p in out.iterdir()} == before - set(names)
    return names


def test_what_the_study_no_longer_has_or_a_study_wrote_that_is_no_more(out):
    commands = {"here": COMMAND, "gone": COMMAND, "other": COMMAND.replace("pair", "other")}
    commands["renamed"] = COMMAND.replace("pair", "pairs")
    written = {name: {"command": command} for name, command in commands.items()}
    assert removed(out(absent={"absent": ["cls"]}, **written)) == ["absent", "gone", "renamed"]


@pytest.mark.parametrize(
    "content", [{"command": "beyondcls probe --head a"}, {}, [], {"command": "--study"}, {"command": "a '"}]
)
def test_what_is_not_ours_stays(content, out):
    assert removed(out(someone=content)) == []


def test_files_of_the_user_stay(out):
    folder = out(gone={"command": COMMAND}) / "gone"
    (folder / "trained/notes.txt").touch()
    assert [p.name for p in remove_left_heads(folder.parent, "pair", (), ("pair",))] == ["gone"]
    assert [p.relative_to(folder).as_posix() for p in folder.rglob("*")] == ["trained", "trained/notes.txt"]


@pytest.mark.parametrize("linked", ["gone", "gone/trained"])
def test_links_are_not_followed(linked, out):
    folder = out(gone={"command": COMMAND})
    elsewhere = folder.parent / f"{folder.name}-elsewhere"
    (folder / linked).rename(elsewhere)
    (folder / linked).symlink_to(elsewhere)
    before = {*elsewhere.rglob("*")}
    assert remove_left_heads(folder, "pair", (), ("pair",)) == []
    assert {*elsewhere.rglob("*")} == before
