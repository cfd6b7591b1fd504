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
from tests.folders import files

probe = partial(run.probe, converged=False)
RECIPE = Recipe(3, 32, 16, "sgd", 0.5, 0.9, 1e-4, 1)
HEADS = {name: HeadPlan(HeadSpec(name), RECIPE, seeds=(0, 3)) for name in ("abmilp", "cls")}
ABMILP, PLAN = {"abmilp": HEADS["abmilp"]}, HEADS["cls"]


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


def said(*arguments, **options):
    """What `probe` says of heads that are in place: NAME: kept, …; or NAME: trained again, ….."""
    messages = []
    with suppress(Trained):
        probe(*arguments, say=messages.append, **options)
    return [match[0] for m in messages if (match := re.search(r"\w+: (kept|trained again), .*", m))]


def summaries(*arguments, **options):
    return {message.split(",")[0] for message in said(*arguments, **options)}


@pytest.fixture
def rerun(sets, out, monkeypatch):
    """What is said of heads that are asked for again, up to where training would begin."""

    def stop_where_training_begins(passes, members, *_):
        if {member.head for member in members} - passes.kept_heads:
            raise Trained
        return []

    def run(heads=HEADS, **options):
        with monkeypatch.context() as patch:
            patch.setattr(HeadPasses, "train", stop_where_training_begins)
            return said(*options.pop("sets", sets), out, heads, **options)

    return run


def test_nothing_of_a_head_in_place_is_touched_and_one_that_is_trained_again_has_the_same_bytes(sets, out, rerun, tmp_path):
    before, done = files(out), []
    assert [message.split(",")[0] for message in rerun(progress=done.append)] == ["abmilp: kept", "cls: kept"]
    assert files(out) == before
    assert sum(done) == n_epochs(HEADS.values())
    for place, options in ((tmp_path / "other", {}), (out, {"retrain": True})):
        probe(*sets, place, HEADS, **options)
        assert files(place) == before


def test_raising_training_trains_again_and_records_without_it_are_of_the_first(out, rerun, monkeypatch):
    for name in HEADS:  # as earlier versions wrote it, which noted first steps as well
        file = out / name / "trained/record.json"
        record = json.loads(file.read_text())
        assert record.pop("training_version") == 1
        if name == "cls":
            file.write_text(json.dumps(record | {"passes": {"training, order 0": {"rates": [[0.1]]}}}) + "\n")
    before = files(out)
    assert all(": kept, " in message for message in rerun())
    assert files(out) == before
    monkeypatch.setattr("probe.record.TRAINING", 7)
    assert ["trained again, " in message and "TRAINING 1, now 7" in message for message in rerun()] == [True, True]


def test_what_is_known_of_the_encoder_by_now_is_written_down_and_nothing_trains(sets, out, rerun, monkeypatch):
    """description.json says it where the set does, however old either is; the time of the head stays its own."""
    write_timing(out / "cls", Timing(0.5, 64, "cpu", 1))
    (out / "abmilp/timing.json").write_text("{")
    before = files(out)
    for name, value in {"family": "labels", "random_seed": None}.items():
        monkeypatch.setitem(sets[0].attributes, name, value)
    fresh = probe(*sets, out.parent / "fresh", HEADS)
    assert all(": kept, " in message for message in rerun())
    after = files(out)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"abmilp/description.json", "cls/description.json", "cls/timing.json"}
    assert {name: content for name, content in after.items() if "timing" not in name} == files(out.parent / "fresh")
    assert all((metrics["family"], metrics["random_seed"]) == ("labels", None) for metrics in fresh.values())
    assert [matches_result(out / name) for name in ("cls", "abmilp")] == [True, False]


def test_of_a_study_with_one_head_edited_that_one_trains_as_it_would_among_all(sets, tmp_path):
    heads = HEADS | {
        "two": HeadPlan(HeadSpec("abmilp", {"branches": 2}), RECIPE, (0, 3)),
        "knn": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=(3,))),  # which is fast, and never kept
    }
    edited = heads | {"two": replace(heads["two"], head=HeadSpec("abmilp", {"branches": 3}))}
    probe(*sets, tmp_path / "out", heads)
    assert summaries(*sets, tmp_path / "out", edited) == {"two: trained again", "abmilp: kept", "cls: kept"}
    probe(*sets, tmp_path / "anew", edited)
    assert files(tmp_path / "out") == files(tmp_path / "anew")
    # That it trained without the others does not show.
    assert summaries(*sets, tmp_path / "out", edited) == {"two: kept", "abmilp: kept", "cls: kept"}


def test_where_features_are_streamed_a_head_trains_in_the_order_that_all_heads_make(sets, tmp_path, monkeypatch):
    """Rows are mixed within what a buffer holds, of all arrays that are read together: of fewer arrays it holds more rows."""
    monkeypatch.setattr("store.loading.loader.BUFFER_NBYTES", 3 * 2 * 16 * (9 * 8 * 2))  # two windows of a batch
    stream = partial(said, *sets, placement="stream")
    heads = {"all": HeadPlan(HeadSpec("abmilp", {"tokens": "all"}), RECIPE, (0,)), "two": HeadPlan(HeadSpec(), RECIPE, (0,))}
    edited = heads | {"two": replace(heads["two"], head=HeadSpec("abmilp", {"branches": 3}))}
    stream(tmp_path / "out", heads)
    assert any("all: kept" in message for message in stream(tmp_path / "out", edited))
    stream(tmp_path / "anew", edited)
    assert files(tmp_path / "out") == files(tmp_path / "anew")
    stream(tmp_path / "alone", {"two": edited["two"]})
    assert files(tmp_path / "alone/two") != files(tmp_path / "anew/two")


REQUESTS = {
    "recipe.epochs": {"recipe": replace(RECIPE, epochs=4)},
    "settings": {"base_lrs": (0.5, 0.6)},
    "seeds": {"seeds": (0, 4)},
    "head.normalisation": {"head": HeadSpec("cls", normalisation="none")},
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
    [message] = rerun({"cls": replace(PLAN, **change)}, **options)
    assert re.fullmatch(rf"cls: trained again, the request differs \(.*\b{named}\b.*\)", message), message


def test_where_seeds_draw_their_own_images_it_is_those_that_count(sets, out, rerun):
    heads = {n: replace(plan, recipe=replace(RECIPE, order="own")) for n, plan in HEADS.items()}

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


IN_TRAINED = ("record.json", "weights.npy", "seed3.json", "seed3.safetensors", "correct.npz")


@pytest.mark.parametrize("file", ["curves.csv", "description.json", *(f"trained/{file}" for file in IN_TRAINED)])
def test_what_is_incomplete_trains_again(file, rerun, out):
    place = out / "abmilp" / file
    whole = place.read_bytes()
    for left in (whole[: len(whole) // 2], b"", *([None] if file != "description.json" else [])):
        place.unlink() if left is None else place.write_bytes(left)
        [message] = rerun(ABMILP)
        assert message.startswith("abmilp: trained again, its files are incomplete or damaged ("), message


def test_files_of_another_run_train_again(sets, out, tmp_path, rerun):
    """As after `dvc checkout` of some of them: each can be read."""
    probe(*sets, tmp_path / "other", {"abmilp": replace(HEADS["abmilp"], recipe=replace(RECIPE, base_lr=0.1))})
    other = tmp_path / "other/abmilp"
    (other / "curves.csv").write_text("\n".join((other / "curves.csv").read_text().splitlines()[:-1]))
    np.save(other / "trained/weights.npy", np.ones((9, 9), np.float32))
    np.savez(other / "trained/correct.npz", correct=np.ones((2, 9), bool))
    record = json.loads((other / "trained/record.json").read_text())
    for file, content, words in (
        ("metrics.json", None, "describes other measures"),
        ("curves.csv", None, "curves.csv has 2 epochs of seed 3"),
        ("trained/seed3.json", None, "of seed 3 is another one"),
        ("trained/weights.npy", None, "is not of the 69 test images"),
        ("trained/correct.npz", None, "is not of the 69 test images"),
        ("trained/record.json", json.dumps(record | {"format_version": 0}).encode(), "is of format version 0"),
        ("trained/record.json", b"{}", "KeyError"),
    ):
        before = (out / "abmilp" / file).read_bytes()
        (out / "abmilp" / file).write_bytes((other / file).read_bytes() if content is None else content)
        [message] = rerun(ABMILP)
        assert re.search(f"again, its files are incomplete or damaged .*({words})", message)
        (out / "abmilp" / file).write_bytes(before)
    assert "kept," in rerun(ABMILP)[0]


def test_a_run_that_is_killed_while_it_writes_leaves_nothing_that_looks_complete(sets, out, rerun, monkeypatch):
    replace_file = os.replace

    def stopping(source, target):
        if str(target).endswith("trained/weights.npy"):
            raise Trained
        replace_file(source, target)

    monkeypatch.setattr("os.replace", stopping)
    with pytest.raises(Trained):
        probe(*sets, out, ABMILP, retrain=True)
    monkeypatch.undo()
    assert not (out / "abmilp/trained/record.json").exists()
    assert "there is no trained/record.json" in rerun(ABMILP)[0]
    messages, done = [], []
    probe(*sets, out, ABMILP, say=messages.append, progress=done.append)
    assert "going on after 3 of 3 epochs" in messages
    assert not any("GB/s" in message for message in messages)
    assert sum(done) == n_epochs(ABMILP.values())


def test_a_grid_is_kept_with_what_was_selected(sets, out, rerun):
    grid = {"cls": replace(PLAN, base_lrs=(0.001, 0.5)), **ABMILP}
    probe(*sets, out, grid)
    before = files(out)
    assert [message.split(",")[0] for message in rerun(grid)] == ["cls: kept", "abmilp: kept"]
    assert files(out) == before
    again, kept = rerun(grid, held_out=0.2)
    assert again == "cls: trained again, the request differs (held_out)"
    assert "abmilp: kept" in kept
