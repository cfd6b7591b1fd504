"""A probe stays as it is when the program was edited harmlessly, and trains again when the edit changes what training gives."""

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.closed import make_closed
from probe.grid import HeadPlan, HeadSpec
from probe.passes import Passes
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import n_epochs, probe
from probe.timing import Timing, matches_result, write_timing
from tests.features import write_features
from tests.probe.edited import edit

# 120 images in steps of 32, computed 16 at once; the last step of an epoch has 24.
RECIPE = Recipe(40, 32, 16, "sgd", 0.5, 0.9, 1e-4, 3)
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
        monkeypatch.setattr(Passes, "train", stop_where_training_begins)
        with suppress(Trained):
            probe(*options.pop("sets", sets), out, heads, say=messages.append, **options)
        return [message.removeprefix(f"{out}/") for message in messages if "kept," in message or "again," in message]

    return run


def stop_where_training_begins(passes, members, *_):
    if {member.head for member in members} - passes.kept_heads:
        raise Trained
    return []


def content(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "kept.json"
    }


def test_nothing_of_a_probe_that_agrees_is_touched(sets, out, rerun):
    before, done = content(out), []
    messages = rerun(progress=done.append)
    assert [message.split(":")[0] for message in messages] == ["abmilp", "cls"]
    assert all("kept, 12 steps of its pass agree (losses within 0.0e+00, 0.0001 is allowed)" in message for message in messages)
    assert content(out) == before
    assert sum(done) == n_epochs(HEADS.values())
    kept_files = json.loads((out / "cls/kept.json").read_text())
    assert kept_files["steps"] == {"training, order 0": 12}  # of the 4 steps of three epochs
    assert kept_files["versions"] == {"torch": torch.__version__, "numpy": np.__version__}
    assert set(kept_files["largest_differences_in_tolerances"]) == set(PARTS)


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


def test_a_head_whose_costs_were_counted_otherwise_is_kept(out, rerun):
    described = json.loads((out / "cls/description.json").read_text())
    del described["cost"]["memory_per_image"]
    (out / "cls/description.json").write_text(json.dumps(described))
    before = content(out)
    assert all(": kept, " in message for message in rerun())
    assert content(out) == before


def test_what_is_recorded_is_the_same_bytes_when_it_is_trained_again(sets, out, tmp_path):
    probe(*sets, tmp_path / "other", HEADS)
    assert content(tmp_path / "other") == content(out)
    probe(*sets, out, HEADS, retrain=True)
    assert content(tmp_path / "other") == content(out)
    assert not (out / "cls/kept.json").exists()


PARTS = ("learning_rates", "rates", "start", "updates", "losses", "right", "state", "measures")
TRAIN, STACK = "probe.train", "probe.stack"
EDITS = {
    "the loss is scaled": (
        TRAIN,
        "(loss.sum() / piece",
        "(1.01 * loss.sum() / piece",
        "loss of step|after the steps|right",
    ),
    "momentum is ignored": ("probe.optim.sgd", ".mul_(self.momentum)", ".mul_(0)", "how the optimiser updates"),
    "warm-up begins higher": ("probe.optim.schedule", "base * epoch / w", "base * (epoch + 0.01) / w", "learning rates of all"),
    "a learning rate is changed while training": (
        TRAIN,
        "rate = recipe.peak(course.shares[epoch][piece.step])",
        "rate = recipe.peak(course.shares[epoch][piece.step]) * (0.5 if epoch > 37 else 1)",
        "the learning rate of a step that was taken",
    ),
    "running statistics follow slower": (
        STACK,
        "MOMENTUM)",
        "MOMENTUM / 2)",
        r"statistics after the steps, running\.",
    ),
    "later epochs have one order": ("probe.course", "[order, epoch]", "[order, min(epoch, 35)]", "which images epochs show"),
    "later epochs are read in another order": (
        "probe.pooled",
        "self.order.visited(seed)",
        "np.sort(self.order.visited(seed))",
        "the images of the steps|which images",
    ),
    "another view is shown": (
        "store.loading.order",
        "default_rng([seed, n_views])",
        "default_rng([seed, n_views, 1])",
        "which images epochs show, in which order and view",
    ),
    "the classifier starts elsewhere": ("probe.grid", ".manual_seed(seed)", ".manual_seed(seed + 1)", "where the head starts"),
    "an incomplete batch is left out": (
        "probe.pieces",
        "if recipe.drop_last else n",
        "if True else n",
        "epoch is cut into",
    ),
    "top-1 is off by one": (
        "probe.metrics.accuracy",
        "ahead.sum(-1) < k",
        "ahead.sum(-1) < k + 1",
        "top1 of the stored head",
    ),
    "running statistics are not used": (
        STACK,
        'self.running["mean"], self.running["var"]',
        '0 * self.running["mean"], self.running["var"]',
        "of the stored head of seed|trained/correct.npz",
    ),
    "the weights are of other tokens": (
        "probe.results",
        "mean[:, -passes.n_patches :]",
        "mean[:, -passes.n_patches :].flip(1)",
        "what is written into trained/weights.npy",
    ),
    "a figure is counted otherwise": (
        "probe.results",
        "sum(p.numel() for",
        "sum(1 for",
        "is written into description.json",
    ),
    "another file is written": ("probe.results", 'trained / "weights.npy"', 'trained / "weights2.npy"', "the files of a probe"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_changes_what_is_trained_is_refused(name, rerun, monkeypatch, out):
    before = content(out)
    module, old, new, words = EDITS[name]
    edit(monkeypatch, module, old, new)
    messages = rerun()
    refused = [message for message in messages if "trained again," in message]
    assert refused, messages
    assert all(re.search(words, message) for message in refused), refused
    assert content(out) == before  # until it has been trained


REFACTORINGS = {
    "gradients are scaled by hand": (
        TRAIN,
        "(loss.sum() / piece.rows_of_step).backward()",
        "(loss * (1 / piece.rows_of_step)).sum().backward()",
    ),
    "batches are not zipped but counted": (
        TRAIN,
        "for piece, batch in zip(course.pieces[begin:], training.epoch(seed, begin), strict=True):",
        "for number, batch in enumerate(training.epoch(seed, begin), begin):\n                piece = course.pieces[number]",
    ),
    "sgd decays by hand": ("probe.optim.sgd", "parameter.addcmul_(lr, average, value=-1)", "parameter.sub_(lr * average)"),
    "rates are scaled first": ("probe.optim.schedule", "base * epoch / warmup", "epoch * (base / warmup)"),
    "members' logits by einsum": (
        STACK,
        "torch.baddbmm(bias[:, :, None], weight, vector.mT).mT",
        'torch.einsum("mbw,mkw->mbk", vector, weight) + bias[:, None]',
    ),
    "running statistics without lerp": (
        STACK,
        "self.running[name].lerp_(value.squeeze(-2), MOMENTUM)",
        "self.running[name].mul_(1 - MOMENTUM).add_(MOMENTUM * value.squeeze(-2))",
    ),
    "evaluation in other batches": (
        "probe.passes",
        "recipe.per_process(self.world_size)[1] if shuffle else recipe.at_once",
        "recipe.per_process(self.world_size)[1] if shuffle else 7",
    ),
    "vectors are pooled in other pieces": ("probe.pooled", "batch_size=READ_ROWS", "batch_size=READ_ROWS // 3"),
    "the description with other spaces": (
        "probe.result_files",
        "json.dumps(described, indent=1)",
        "json.dumps(described, indent=2)",
    ),
}


@pytest.mark.parametrize("name", REFACTORINGS)
def test_an_edit_that_changes_nothing_but_rounding_is_not_refused(name, rerun, monkeypatch, out):
    before = content(out)
    edit(monkeypatch, *REFACTORINGS[name])
    messages = rerun()
    assert [message.split(",")[0] for message in messages] == ["abmilp: kept", "cls: kept"], messages
    assert content(out) == before


def test_a_refused_head_is_trained_and_one_that_agrees_stays(sets, out, monkeypatch, tmp_path):
    """Of the edit only heads with parameters in their aggregator know."""
    kept_files = content(out / "cls")
    edit(
        monkeypatch,
        "probe.pooling",
        "torch.bmm(weights[images], x, out=vectors[images])",
        "torch.bmm(weights[images], 2 * x, out=vectors[images])",
    )
    messages = []
    written = probe(*sets, out, HEADS, say=messages.append)
    assert [m.split(": ")[1].split(",")[0] for m in messages if "kept," in m or "again," in m] == ["trained again", "kept"]
    assert content(out / "cls") == kept_files
    probe(*sets, tmp_path / "anew", HEADS)
    assert content(out) == content(tmp_path / "anew")
    assert written["abmilp"] == read_result(out / "abmilp/metrics.json")


def test_of_a_study_with_one_head_edited_that_one_trains_as_it_would_among_all(sets, tmp_path):
    heads = HEADS | {
        "two": HeadPlan(HeadSpec("abmilp", {"branches": 2}), RECIPE, (0, 3)),
        "knn": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=(3,))),
    }
    edited = heads | {"two": replace(heads["two"], head=HeadSpec("abmilp", {"branches": 3}))}
    probe(*sets, tmp_path / "out", heads)
    messages = []
    probe(*sets, tmp_path / "out", edited, say=messages.append)
    summaries = [m.removeprefix(f"{tmp_path}/out/").split(" (")[0] for m in messages if "kept," in m or "again," in m]
    assert summaries == [
        "two: trained again, the request differs",
        "abmilp: kept, 12 steps of its pass agree",
        "cls: kept, 12 steps of its pass agree",
    ]
    probe(*sets, tmp_path / "anew", edited)
    assert content(tmp_path / "out") == content(tmp_path / "anew")
    messages.clear()
    probe(*sets, tmp_path / "out", edited, say=messages.append)
    assert len([m for m in messages if "kept," in m]) == 3  # that it trained without the others does not show


def test_where_features_are_streamed_a_head_trains_in_the_order_that_all_heads_make(sets, tmp_path, monkeypatch):
    """Rows are mixed within what a buffer holds, of all arrays that are read together: of fewer arrays it holds more rows."""
    monkeypatch.setattr(
        "store.loading.loader.BUFFER_NBYTES", 3 * 2 * 16 * (9 * 8 * 2)
    )  # of patch tokens two windows of a batch
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
    "recipe.epochs": {"recipe": replace(RECIPE, epochs=41)},
    "settings": {"base_lrs": (0.5, 0.6)},
    "seeds": {"seeds": (0, 4)},
    "head.normalisation": {"head": HeadSpec("cls", normalisation="none")},
    "head.aggregator": {"head": HeadSpec("average")},
    "views": {"options": {"views": 2}},
    "training.rows": {"options": {"subset": np.arange(1, 120)}},
    "notes.subset": {"options": {"notes": {"subset": {"percent": 100}}}},
}


@pytest.mark.parametrize("named", REQUESTS)
def test_what_is_asked_for_otherwise_trains_again(named, rerun):
    change = dict(REQUESTS[named])
    options = change.pop("options", {})
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


def test_other_features_train_again(sets, tmp_path, rerun):
    other = write_features(tmp_path / "labels", 120, views=3, labels=[*np.arange(119) % 3, 0])
    assert "(training.labels)" in rerun({"cls": PLAN}, sets=(other, sets[1]))[0]
    other = write_features(tmp_path / "seed", 70, seed=2)
    assert "test.key" in rerun({"cls": PLAN}, sets=(sets[0], other))[0]


def test_a_custom_aggregator_that_was_edited_trains_again(sets, rerun, tmp_path, out):
    file = tmp_path / "mine.py"
    file.write_text("from probe.aggregators.abmilp import AbMILP\nclass Mine(AbMILP):\n    pass\n")
    heads = {"mine": HeadPlan(HeadSpec(f"{file}:Mine"), RECIPE, (0,))}
    probe(*sets, out, heads)
    assert "mine: kept" in rerun(heads)[0]
    file.write_text(file.read_text() + "# edited\n")
    assert rerun(heads) == ["mine: trained again, the request differs (head.file)"]


DAMAGES = {
    "trained/record.json": "nothing is recorded of its first steps",
    "trained/weights.npy": "not as before: the files of a probe: trained/weights.npy",
    "trained/seed3.json": "its files are incomplete or damaged",
    "trained/seed3.safetensors": "its files are incomplete or damaged",
    "trained/correct.npz": "not as before: the files of a probe: trained/correct.npz",
    "curves.csv": "its files are incomplete or damaged",
}


@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.parametrize("file", DAMAGES)
def test_what_is_incomplete_trains_again(file, how, rerun, out):
    (out / "abmilp" / file).unlink()
    if how == "empty":
        (out / "abmilp" / file).touch()
    words = DAMAGES[file]
    [messages] = rerun({"abmilp": HEADS["abmilp"]})
    if how == "empty" and file.endswith(("npy", "npz")):
        words = "its files are incomplete or damaged"
    assert messages.startswith(f"abmilp: trained again, {words}"), messages


def test_a_record_that_says_something_else_trains_again(rerun, out):
    record = json.loads((out / "cls/trained/record.json").read_text())
    del record["passes"]["training, order 0"]["members"][0][3]["start"]
    (out / "cls/trained/record.json").write_text(json.dumps(record))
    assert "damaged" in rerun({"cls": PLAN})[0]
    (out / "cls/trained/record.json").write_text(json.dumps(record | {"format_version": 0}))
    assert "nothing is recorded" in rerun({"cls": PLAN})[0]


def test_a_run_that_is_killed_while_it_writes_leaves_nothing_that_looks_complete(sets, out, rerun, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", stop_in("trained/weights.npy"))
        with pytest.raises(Trained):
            probe(*sets, out, {"abmilp": HEADS["abmilp"]}, retrain=True)
    assert not (out / "abmilp/trained/record.json").exists()
    assert "nothing is recorded" in rerun({"abmilp": HEADS["abmilp"]})[0]
    messages, done = [], []
    monkeypatch.undo()
    probe(*sets, out, {"abmilp": HEADS["abmilp"]}, say=messages.append, progress=done.append)
    assert "going on after 40 of 40 epochs" in messages
    assert not any("GB/s" in message for message in messages)
    assert sum(done) == n_epochs([HEADS["abmilp"]])


def stop_in(name):
    """Stop where files are put in their places, at this one."""
    replace_file = os.replace

    def stopping(source, target):
        if str(target).endswith(name):
            raise Trained
        replace_file(source, target)

    return stopping


def test_passes_that_are_hardly_longer_than_a_check_are_not_recorded(sets, tmp_path):
    for epochs, recorded in ((24, False), (25, True)):  # of 4 steps: 96 is as many as 4 times 24
        probe(*sets, tmp_path / f"{epochs}", replace(PLAN, recipe=replace(RECIPE, epochs=epochs)))
        assert (tmp_path / f"{epochs}/trained/record.json").exists() == recorded
    messages = []
    probe(*sets, tmp_path / "24", replace(PLAN, recipe=replace(RECIPE, epochs=24)), say=messages.append)
    assert any("24: trained again, nothing is recorded of its first steps" in message for message in messages)


GRID = {"cls": replace(PLAN, base_lrs=(0.001, 0.5)), "abmilp": HEADS["abmilp"]}


@pytest.fixture(scope="module")
def compared(sets, tmp_path_factory):
    out = tmp_path_factory.mktemp("grid") / "out"
    probe(*sets, out, GRID, views=1)
    return out


class TestGrid:
    @pytest.fixture
    def out(self, compared, tmp_path):
        return shutil.copytree(compared, tmp_path / "out")

    def test_is_kept_with_the_pass_that_compared_its_settings(self, rerun, out):
        before = content(out)
        messages = rerun(GRID, views=1)
        assert [m.split(" (")[0] for m in messages] == [
            "cls: kept, 12 and 12 and 12 steps of its passes agree",  # each of two seeds has its own hold-out
            "abmilp: kept, 12 steps of its pass agree",
        ]
        assert content(out) == before

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("return max(eligible", "return min(eligible", "its passes|the members that train"),
            ("store.labels, share, SEED", "store.labels, share, SEED + 1", "(selection|compared on)"),
        ],
    )
    def test_another_way_to_choose_is_refused(self, old, new, words, rerun, monkeypatch):
        edit(monkeypatch, "probe.select", old, new)
        messages = rerun(GRID, views=1)
        assert re.search(f"cls: trained again, not as before: .*{words}", " ".join(messages)), messages
        assert any("abmilp: kept" in message for message in messages)

    def test_another_share_that_is_held_out(self, rerun):
        messages = rerun(GRID, held_out=0.2, views=1)
        assert "cls: trained again, the request differs (held_out)" in messages
        assert any("abmilp: kept" in message for message in messages)
