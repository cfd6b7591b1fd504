"""A head that is in its folder stays if it was trained from what is asked for now; else it trains, and a reason is given."""

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from probe import run
from probe.closed import make_closed
from probe.grid import HeadPlan, HeadSpec
from probe.passes import HeadPasses
from probe.recipe import Recipe
from probe.run import n_epochs
from probe.timing import Timing, matches_result, write_timing
from tests.features import write_features

probe = partial(run.probe, converged=False)
RECIPE = Recipe(3, 32, 16, "sgd", 0.5, 0.9, 1e-4, 1)
HEADS = {name: HeadPlan(HeadSpec(name), RECIPE, seeds=(0, 3)) for name in ("abmilp", "cls")}


class Trained(Exception):
    """Training began."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return write_features(folder / "train", 120, views=3), write_features(folder / "test", 70, seed=1, invalid=(5,))


@pytest.fixture(scope="module")
def trained(sets, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "out"
    probe(*sets, out, HEADS)
    return out


@pytest.fixture
def out(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "out")


@pytest.fixture
def rerun(sets, out, monkeypatch):
    """What is said of heads that are asked for again, up to where training would begin."""

    def run(heads=HEADS, **options):
        messages = []
        monkeypatch.setattr(HeadPasses, "train", stop_where_training_begins)
        with suppress(Trained):
            probe(*options.pop("sets", sets), out, heads, say=messages.append, **options)
        return [message.removeprefix(f"{out}/") for message in messages if "kept," in message or "again," in message]

    return run


def stop_where_training_begins(passes, members, *_):
    if {member.head for member in members} - passes.kept_heads:
        raise Trained
    return []


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_nothing_of_a_head_in_place_is_touched(sets, out, rerun):
    before, done = content(out), []
    messages = rerun(progress=done.append)
    assert [message.split(",")[0] for message in messages] == ["abmilp: kept", "cls: kept"]
    assert content(out) == before
    assert sum(done) == n_epochs(HEADS.values())


def test_raising_training_trains_again_and_records_without_it_are_of_the_first(out, rerun, monkeypatch):
    for name in HEADS:  # as earlier versions wrote it, which noted first steps as well
        file = out / name / "trained/record.json"
        record = json.loads(file.read_text())
        assert record.pop("training_version") == 1
        if name == "cls":
            file.write_text(json.dumps(record | {"passes": {"training, order 0": {"rates": [[0.1]]}}}) + "\n")
    before = content(out)
    assert all(": kept, " in message for message in rerun())
    assert content(out) == before
    monkeypatch.setattr("probe.record.TRAINING", 7)
    assert ["trained again, " in message and "TRAINING 1, now 7" in message for message in rerun()] == [True, True]


def test_what_is_known_of_the_encoder_by_now_is_written_down_and_nothing_trains(sets, out, rerun, monkeypatch):
    """description.json says it where the set does, however old either is; the time of the head stays its own."""
    write_timing(out / "cls", Timing(0.5, 64, "cpu", 1))
    (out / "abmilp/timing.json").write_text("{")
    before = content(out)
    for name, value in {"family": "labels", "random_seed": None}.items():
        monkeypatch.setitem(sets[0].attributes, name, value)
    fresh = probe(*sets, out.parent / "fresh", HEADS)
    assert all(": kept, " in message for message in rerun())
    after = content(out)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"abmilp/description.json", "cls/description.json", "cls/timing.json"}
    for name, metrics in fresh.items():
        for file in ("metrics.json", "description.json"):
            assert (out / name / file).read_bytes() == (out.parent / "fresh" / name / file).read_bytes()
        assert (metrics["family"], metrics["random_seed"]) == ("labels", None)
    assert matches_result(out / "cls")
    assert not matches_result(out / "abmilp")


def test_what_is_recorded_is_the_same_bytes_when_it_is_trained_again(sets, out, tmp_path):
    probe(*sets, tmp_path / "other", HEADS)
    assert content(tmp_path / "other") == content(out)
    probe(*sets, out, HEADS, retrain=True)
    assert content(tmp_path / "other") == content(out)


def test_of_a_study_with_one_head_edited_that_one_trains_as_it_would_among_all(sets, tmp_path):
    heads = HEADS | {
        "two": HeadPlan(HeadSpec("abmilp", {"branches": 2}), RECIPE, (0, 3)),
        "knn": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=(3,))),
    }
    edited = heads | {"two": replace(heads["two"], head=HeadSpec("abmilp", {"branches": 3}))}
    probe(*sets, tmp_path / "out", heads)
    messages = []
    probe(*sets, tmp_path / "out", edited, say=messages.append)
    summaries = {m.removeprefix(f"{tmp_path}/out/").split(",")[0] for m in messages if "kept," in m or "again," in m}
    assert summaries == {"two: trained again", "abmilp: kept", "cls: kept"}
    probe(*sets, tmp_path / "anew", edited)
    assert content(tmp_path / "out") == content(tmp_path / "anew")
    messages.clear()
    probe(*sets, tmp_path / "out", edited, say=messages.append)
    assert len([m for m in messages if "kept," in m]) == 3  # that it trained without the others does not show


def test_where_features_are_streamed_a_head_trains_in_the_order_that_all_heads_make(sets, tmp_path, monkeypatch):
    """Rows are mixed within what a buffer holds, of all arrays that are read together: of fewer arrays it holds more rows."""
    monkeypatch.setattr("store.loading.loader.BUFFER_NBYTES", 3 * 2 * 16 * (9 * 8 * 2))  # two windows of a batch
    heads = {"all": HeadPlan(HeadSpec("abmilp", {"tokens": "all"}), RECIPE, (0,)), "two": HeadPlan(HeadSpec(), RECIPE, (0,))}
    edited = heads | {"two": replace(heads["two"], head=HeadSpec("abmilp", {"branches": 3}))}
    probe(*sets, tmp_path / "out", heads, placement="stream")
    messages: list[str] = []
    probe(*sets, tmp_path / "out", edited, placement="stream", say=messages.append)
    assert any("all: kept" in message for message in messages)
    probe(*sets, tmp_path / "anew", edited, placement="stream")
    assert content(tmp_path / "out") == content(tmp_path / "anew")
    alone = {"two": edited["two"]}
    probe(*sets, tmp_path / "alone", alone, placement="stream")
    assert content(tmp_path / "alone/two") != content(tmp_path / "anew/two")


PLAN = HEADS["cls"]
REQUESTS = {
    "recipe.epochs": {"recipe": replace(RECIPE, epochs=4)},
    "settings": {"base_lrs": (0.5, 0.6)},
    "seeds": {"seeds": (0, 4)},
    "head.normalisation": {"head": HeadSpec("cls", normalisation="none")},
    "head.aggregator": {"head": HeadSpec("average")},
    "views": {"options": {"views": 2}},
    "training.rows": {"options": {"subset": np.arange(1, 120)}},
    "notes.subset": {"options": {"notes": {"subset": {"percent": 100}}}},
    "training.labels": {"training": {"labels": [*np.arange(119) % 3, 0]}},
    "training.key": {"training": {"seed": 2}},
}


@pytest.mark.parametrize("named", REQUESTS)
def test_what_is_asked_for_otherwise_trains_again(named, rerun, sets, tmp_path):
    change = dict(REQUESTS[named])
    options = change.pop("options", {})
    if other := change.pop("training", None):
        options = {"sets": (write_features(tmp_path / "other", 120, views=3, **other), sets[1])}
    [messages] = rerun({"cls": replace(PLAN, **change)}, **options)
    assert re.fullmatch(rf"cls: trained again, the request differs \(.*\b{named}\b.*\)", messages), messages


@pytest.mark.parametrize("grid", [{}, {"base_lrs": (0.4, 0.5)}])
def test_where_seeds_draw_their_own_images_it_is_those_that_count(grid, sets, out, rerun):
    heads = {n: replace(plan, recipe=replace(RECIPE, order="own"), **grid) for n, plan in HEADS.items()}

    def draw(seed, rows):
        return rows[seed : seed + 100]

    probe(*sets, out, heads, subset=draw)
    assert ["kept" in message for message in rerun(heads, subset=draw)] == [True, True]
    others = rerun(heads, subset=lambda seed, rows: draw(5 * seed, rows))
    assert all("the request differs (draws" in message for message in others)


def test_a_custom_aggregator_that_was_edited_trains_again(sets, rerun, tmp_path, out):
    file = tmp_path / "mine.py"
    file.write_text("from probe.aggregators.abmilp import AbMILP\nclass Mine(AbMILP):\n    pass\n")
    heads = {"mine": HeadPlan(HeadSpec(f"{file}:Mine"), RECIPE, (0,))}
    probe(*sets, out, heads)
    assert "mine: kept" in rerun(heads)[0]
    file.write_text(file.read_text() + "# edited\n")
    assert rerun(heads) == ["mine: trained again, the request differs (head.file)"]


FILES = ("record.json", "weights.npy", "seed3.json", "seed3.safetensors", "correct.npz")


@pytest.mark.parametrize("file", ["curves.csv", "description.json", *(f"trained/{file}" for file in FILES)])
def test_what_is_incomplete_trains_again(file, rerun, out):
    place = out / "abmilp" / file
    whole = place.read_bytes()
    for left in (whole[: len(whole) // 2], b"", *([None] if file != "description.json" else [])):
        place.unlink() if left is None else place.write_bytes(left)
        [message] = rerun({"abmilp": HEADS["abmilp"]})
        assert message.startswith("abmilp: trained again, its files are incomplete or damaged ("), message


def test_files_of_another_run_train_again(sets, out, tmp_path, rerun):
    """As after `dvc checkout` of some of them: each can be read."""
    probe(*sets, tmp_path / "other", {"abmilp": replace(HEADS["abmilp"], recipe=replace(RECIPE, base_lr=0.1))})
    other = tmp_path / "other/abmilp"
    (other / "curves.csv").write_text("\n".join((other / "curves.csv").read_text().splitlines()[:-1]))
    np.save(other / "trained/weights.npy", np.ones((9, 9), np.float32))
    np.savez(other / "trained/correct.npz", correct=np.ones((2, 9), bool))
    for file, words in {
        "metrics.json": "describes other measures",
        "curves.csv": "curves.csv has 2 epochs of seed 3",
        "trained/seed3.json": "of seed 3 is another one",
        "trained/weights.npy": "is not of the 69 test images",
        "trained/correct.npz": "is not of the 69 test images",
    }.items():
        before = (out / "abmilp" / file).read_bytes()
        shutil.copy(other / file, out / "abmilp" / file)
        [message] = rerun({"abmilp": HEADS["abmilp"]})
        assert "again, its files are incomplete or damaged" in message
        assert words in message
        (out / "abmilp" / file).write_bytes(before)
    assert "kept," in rerun({"abmilp": HEADS["abmilp"]})[0]


def test_a_record_of_another_format_trains_again(rerun, out):
    record = json.loads((out / "cls/trained/record.json").read_text())
    for other, words in ((record | {"format_version": 0}, "is of format version 0"), ([], "damaged"), ({}, "damaged")):
        (out / "cls/trained/record.json").write_text(json.dumps(other))
        assert words in rerun({"cls": PLAN})[0]


def test_a_run_that_is_killed_while_it_writes_leaves_nothing_that_looks_complete(sets, out, rerun, monkeypatch):
    replace_file = os.replace

    def stopping(source, target):
        if str(target).endswith("trained/weights.npy"):
            raise Trained
        replace_file(source, target)

    monkeypatch.setattr("os.replace", stopping)
    with pytest.raises(Trained):
        probe(*sets, out, {"abmilp": HEADS["abmilp"]}, retrain=True)
    monkeypatch.undo()
    assert not (out / "abmilp/trained/record.json").exists()
    assert "there is no trained/record.json" in rerun({"abmilp": HEADS["abmilp"]})[0]
    messages, done = [], []
    monkeypatch.undo()
    probe(*sets, out, {"abmilp": HEADS["abmilp"]}, say=messages.append, progress=done.append)
    assert "going on after 3 of 3 epochs" in messages
    assert not any("GB/s" in message for message in messages)
    assert sum(done) == n_epochs([HEADS["abmilp"]])


GRID = {"cls": replace(PLAN, base_lrs=(0.001, 0.5)), "abmilp": HEADS["abmilp"]}


def test_a_grid_is_kept_with_what_was_selected(sets, out, rerun):
    probe(*sets, out, GRID)
    before = content(out)
    assert [message.split(",")[0] for message in rerun(GRID)] == ["cls: kept", "abmilp: kept"]
    assert content(out) == before
    assert [message.split(",")[0] for message in rerun(GRID, held_out=0.2)] == ["cls: trained again", "abmilp: kept"]
    assert "(held_out)" in rerun({"cls": GRID["cls"]}, held_out=0.2)[0]
