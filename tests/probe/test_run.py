"""`probe()` from feature sets to files: what is written, for which heads, and what is refused."""

import csv
import json
import re
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

from probe import run
from probe.checkpoint import Stopped
from probe.closed import CLOSED, make_closed
from probe.cost import Cost
from probe.grid import HeadPlan, HeadSpec, Member
from probe.metrics import MULTILABEL, PER_IMAGE
from probe.needs import TooLarge
from probe.recipe import Recipe
from probe.result_files import REACHED, over_seeds, read_result
from probe.run import n_epochs
from probe.saved import load_with
from probe.subsets import percentage
from store import BeyondClsError, StoreError
from tests.features import write_features
from tests.folders import files as contents

probe = partial(run.probe, converged=False)  # converged classifiers: test_convergence.py
RECIPE = Recipe(epochs=3, batch_size=32, warmup_epochs=1, base_lr=0.5)
PLAN = HeadPlan(recipe=RECIPE, seeds=(0, 3))
CLS = HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0,))
KNN = HeadPlan(HeadSpec("cls"), seeds=(0, 3), closed=make_closed("knn", ks=(1, 5)))
OWN = {"recipe": replace(RECIPE, order="own")}
BESIDE = ("curves.csv", "description.json", "metrics.json")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return write_features(folder / "train", 128), write_features(folder / "test", 70, seed=1, invalid=(5, 6))


def both(folder, n=40, **options):
    """A training and a test set alike."""
    return [write_features(folder / side, n, seed=i, **options) for i, side in enumerate(("train", "test"))]


def rows_of(folder):
    """The curves, as numbers."""
    with (folder / "curves.csv").open() as file:
        return [{column: float(text) for column, text in row.items()} for row in csv.DictReader(file)]


def right(folder):
    """Which test images each seed is right about."""
    with np.load(folder / "trained/correct.npz", allow_pickle=False) as file:
        assert list(file) in (["correct"], ["correct", "converged"])
        assert file["correct"].dtype == bool
        return file["correct"]


def weights(*places, seed=0):
    """The bytes of the probes in these folders; all the same: one."""
    return {(place / f"trained/seed{seed}.safetensors").read_bytes() for place in places}


def logits_of(stem, test):
    """What a saved probe of one kind of tokens makes of the valid test images of a store."""
    head, described = load_with(stem)
    (kind,) = head.aggregator.reads
    tokens = test.array(f"{kind}/block{described['block']}/view0").rows(np.flatnonzero(test.labelled))
    with torch.no_grad():
        return head({kind: torch.from_numpy(tokens).float()})[0]


class TestWhatIsWritten:
    def test_of_one_plan(self, sets, tmp_path):
        written = probe(*sets, tmp_path / "out", PLAN, notes={"command": "beyondcls probe"})
        assert list(written) == ["out"]
        metrics, out = written["out"], tmp_path / "out"
        of_seeds = [f"seed{seed}.{end}" for seed in (0, 3) for end in ("json", "safetensors")]
        trained = ["correct.npz", "record.json", *of_seeds, "weights.npy"]
        assert sorted(contents(tmp_path)) == [f"out/{file}" for file in (*BESIDE, *(f"trained/{name}" for name in trained))]
        assert read_result(out / "metrics.json") == metrics
        for measure in ("top1", "top5", "entropy"):
            values = metrics[measure]["values"]
            assert metrics[measure] == over_seeds(values) | {"values": values}
            assert len(values) == 2
        said = {"n_training": 128, "n_test": 68, "n_views": 1, "n_tokens": 9, "n_classes": 3, "n_parameters": 9 + 27}
        said |= {"encoder": "encoder-w", "block": 1, "seeds": [0, 3], "command": "beyondcls probe", **PLAN.head.to_dict()}
        said |= {"features": {"training": sets[0].spec.key, "test": sets[1].spec.key}, "recipe": vars(RECIPE)}
        assert {name: metrics[name] for name in said} == said
        notes = ["no augmentation", "all 2 seeds see the same order of images"]
        assert [note.split(":")[0] for note in metrics["notes"]] == notes
        assert metrics["selected"]["on"] == "nothing"
        rows = rows_of(out)
        assert [(r["seed"], r["epoch"]) for r in rows] == [(s, e) for s in (0, 3) for e in (1, 2, 3)]
        assert set(rows[0]) == {"seed", "epoch", "loss", "train_top1", "entropy", *PER_IMAGE}
        for measure in ("top1", "train_top1"):
            assert [rows[i][measure] for i in (2, 5)] == metrics[measure]["values"]
        per_patch = np.load(out / "trained/weights.npy")
        assert (per_patch.shape, per_patch.dtype) == ((68, 9), np.float32)
        np.testing.assert_allclose(per_patch.sum(1), 1, atol=1e-6)
        described = json.loads((out / "trained/seed3.json").read_text())
        assert (described["seed"], described["block"], described["encoder_weights"]) == (3, 1, "w")
        assert described["result"]["top1"] == metrics["top1"]["values"][1]

    def test_of_several_heads(self, sets, tmp_path, monkeypatch):
        monkeypatch.setitem(sets[0].attributes, "cls_caution", "not fine-tuned")  # noted by heads that read it
        heads = {"one": PLAN, "cls": replace(CLS, recipe=replace(RECIPE, epochs=2)), "knn": KNN}
        heads["nearest"] = replace(KNN, head=HeadSpec("average"))
        written = probe(*sets, tmp_path / "out", heads)
        assert list(written) == list(heads)
        for name, metrics in written.items():
            correct = right(tmp_path / "out" / name)
            assert correct.shape == (max(1, len(metrics["seeds"])), 68)
            assert (100 * correct.mean(1)).tolist() == pytest.approx(metrics["top1"]["values"])
            assert read_result(tmp_path / "out" / name / "metrics.json") == metrics
        assert sorted(contents(tmp_path / "out/nearest")) == [*BESIDE, "trained/correct.npz"]
        assert "trained/weights.npy" not in contents(tmp_path / "out/cls")
        assert len(rows_of(tmp_path / "out/cls")) == 2
        assert (written["cls"]["n_tokens"], written["nearest"]["seeds"]) == (None, [])
        assert written["nearest"]["protocol"]["name"] == "knn"
        assert written["nearest"]["cost"] == asdict(Cost(0, None, None, 2 * 9 * 8))
        assert {n for n, metrics in written.items() if "[cls]: not fine-tuned" in metrics["notes"]} == {"cls", "knn"}
        assert probe(*sets, tmp_path / "alone", PLAN)["alone"]["top1"] == written["one"]["top1"]

    def test_an_earlier_run_leaves_nothing_behind(self, sets, tmp_path):
        probe(*sets, tmp_path / "out", PLAN)
        (tmp_path / "out/own.txt").write_text("of the user")
        probe(*sets, tmp_path / "out", CLS)
        trained = ["trained/correct.npz", "trained/record.json", "trained/seed0.json", "trained/seed0.safetensors"]
        assert sorted(contents(tmp_path / "out")) == [*BESIDE, "own.txt", *trained]
        probe(*sets, tmp_path / "out", HeadPlan(HeadSpec("cls"), closed=make_closed("ridge")))
        assert sorted(contents(tmp_path / "out")) == [*BESIDE, "own.txt", "trained/correct.npz"]
        assert right(tmp_path / "out").shape == (1, 68)
        assert rows_of(tmp_path / "out") == []

    def test_two_probes_are_of_the_same_images_or_say_that_they_are_not(self, sets, tmp_path):
        """Only then can they be compared image by image."""
        others = {"same": {"invalid": (5, 6)}, "all": {}, "moved": {"order": [*range(10, 70), *range(10)]}}
        tests = [sets[1], *(write_features(tmp_path / name, 70, seed=1, **options) for name, options in others.items())]
        digests = [probe(sets[0], test, tmp_path / "out", {"h": KNN})["h"]["test_images"] for test in tests]
        valid = "\n".join(f"{i:06d}" for i in range(70) if i not in (5, 6))
        assert digests[0] == digests[1] == xxhash.xxh3_128_hexdigest(valid.encode())
        assert len(set(digests)) == 3


class TestEpochs:
    PLANS = {"grid": replace(PLAN, base_lrs=(0.1, 0.5)), "cls": CLS, "near": KNN}  # noqa: RUF012

    def test_each_of_each_member(self, sets, tmp_path):
        epochs, done = [], []
        described = probe(*sets, tmp_path / "told", self.PLANS, on_epoch=epochs.append, progress=done.append)
        probe(*sets, tmp_path / "silent", self.PLANS)
        assert contents(tmp_path / "told") == contents(tmp_path / "silent")
        assert len(epochs) == sum(done) == n_epochs(self.PLANS.values()) == 3 * (4 + 2 + 1)
        assert not any(one.is_replayed for one in epochs)
        trained = [one for one in epochs if one.stage == "training"]
        tried = [one for one in epochs if one.stage == "selection"]
        assert {one.member for one in tried} == {Member("grid", lr, 0.0, seed) for lr in (0.1, 0.5) for seed in (0, 3)}
        assert all({"epoch", "lr", "loss", "train_top1"} == one.measures.keys() for one in tried)
        # That of the last step of the epoch: of four, one epoch of warm-up, then half a cosine over two.
        of_cls = [one.measures["lr"] for one in trained if one.member.head == "cls"]
        shares = [3 / 4, *((1 + np.cos(np.pi * done / 2)) / 2 for done in (3 / 4, 7 / 4))]
        assert of_cls == pytest.approx([0.5 * 32 / 256 * share for share in shares])
        chosen = described["grid"]["selected"]["base_lr"]
        members = {*(Member("grid", chosen, 0.0, s) for s in (0, 3)), Member("cls", 0.5, 0.0, 0)}
        assert {one.member for one in trained} == members
        for name in ("grid", "cls"):
            of_head = sorted((one for one in trained if one.member.head == name), key=lambda one: one.member.seed)
            rows = [{"seed": one.member.seed, **one.measures} for one in of_head]
            assert [{n: v for n, v in row.items() if n != "lr"} for row in rows] == rows_of(tmp_path / "told" / name)

    def test_a_run_that_was_asked_to_stop_goes_on_to_the_same_bytes(self, sets, tmp_path):
        """It begins with the epochs of the one before. After the last epoch of a pass nobody is asked."""
        plan, whole, first, rest, said = self.PLANS["grid"], [], [], [], []
        probe(*sets, tmp_path / "whole/h", plan, on_epoch=whole.append)
        asked = iter([False] * 5)  # two passes of the selection, one epoch of training
        with pytest.raises(Stopped):
            probe(*sets, tmp_path / "stopped/h", plan, on_epoch=first.append, stops=lambda: next(asked, True))
        assert not (tmp_path / "stopped/h").exists()
        probe(*sets, tmp_path / "stopped/h", plan, on_epoch=rest.append, say=said.append)
        assert "going on after 2 of 3 epochs" in said
        assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
        assert first == whole[: len(first)]
        assert [replace(one, is_replayed=False) for one in rest] == whole
        assert [one.is_replayed for one in rest] == [True] * len(first) + [False] * (len(whole) - len(first))
        assert 0 < len(first) < len(whole)
        once = HeadPlan(recipe=Recipe(1, 32, warmup_epochs=0), seeds=(0,))
        assert probe(*sets, tmp_path / "h", once, stops=lambda: True)


class TestPasses:
    def test_heads_of_one_recipe_share_one_reading(self, sets, tmp_path):
        """Learning rate, weight decay, seeds and the head itself may differ."""
        other = HeadPlan(HeadSpec("abmilp", {"depth": 2}), replace(RECIPE, base_lr=0.1, weight_decay=0.2), seeds=(7,))
        said: list[str] = []
        heads = {"a": PLAN, "b": other, "c": replace(PLAN, recipe=replace(RECIPE, epochs=2))}
        probe(*sets, tmp_path / "out", heads, say=said.append)
        assert sum("features in memory" in s for s in said) == 2

    def test_heads_that_do_not_fit_into_memory_together_train_one_after_the_other(self, sets, tmp_path, monkeypatch):
        plans = {name: replace(PLAN, head=HeadSpec("abmilp", {"depth": depth})) for depth, name in enumerate("abc", 1)}
        probe(*sets, tmp_path / "together", plans)
        passes, said = [], []

        def check(families, *_):
            passes.append("".join(family.names[0].head for family in families))
            if len(families) > 1:
                raise TooLarge("3 heads need 9 GB, 1 GB is free")

        monkeypatch.setattr("probe.passes.check_memory", check)
        probe(*sets, tmp_path / "apart", plans, say=said.append)
        assert passes == ["abc", "a", "bc", "b", "c"]
        assert [line for line in said if "memory does not suffice" in line]
        assert contents(tmp_path / "together") == contents(tmp_path / "apart")

        def refuse(*_):
            raise TooLarge("1 head needs 9 GB")

        monkeypatch.setattr("probe.passes.check_memory", refuse)
        with pytest.raises(TooLarge, match="needs 9 GB"):
            probe(*sets, tmp_path / "none", plans)


def test_several_labels_an_image(tmp_path):
    sets = [write_features(tmp_path / f"{n}", n, seed=n, multilabel=True, n_classes=4, signal=4.0) for n in (128, 70)]
    plan = HeadPlan(HeadSpec("abmilp"), replace(RECIPE, epochs=30, base_lr=2.0), seeds=(0,), base_lrs=(0.001, 2.0))
    heads = {"abmilp": plan, "ridge": HeadPlan(HeadSpec("average"), closed=make_closed("ridge"))}
    written = probe(*sets, tmp_path / "out", heads)
    for metrics in written.values():
        assert MULTILABEL.keys() <= metrics.keys()
        assert "top1" not in metrics
        assert (metrics["selected"]["by"], metrics["n_classes"]) == ("map", 4)
    assert written["abmilp"]["selected"]["base_lr"] == 2.0
    assert written["abmilp"]["selected"]["on"] == "10 % of the training images, at random"
    assert written["abmilp"]["map"]["mean"] > 60
    assert not list((tmp_path / "out").glob("*/trained/correct.npz"))
    logits = logits_of(tmp_path / "out/abmilp/trained/seed0", sets[1])
    for name, measure in MULTILABEL.items():
        expected = measure(logits, torch.from_numpy(sets[1].labels))
        assert written["abmilp"][name]["mean"] == pytest.approx(float(expected), abs=1e-3)
    assert MULTILABEL.keys() <= rows_of(tmp_path / "out/abmilp")[0].keys()


@pytest.mark.parametrize("name", CLOSED)
def test_protocols_without_steps_take_view_0(name, tmp_path):
    train, test = write_features(tmp_path / "a", 96, views=3), write_features(tmp_path / "b", 64, seed=1)
    plan, said = HeadPlan(HeadSpec("cls"), closed=make_closed(name, **{CLOSED[name].grid: [5, 20]})), []
    one, metrics = (probe(train, test, tmp_path / str(v), plan, views=v, progress=said.append)[str(v)] for v in (1, 3))
    assert one == metrics == read_result(tmp_path / "3/metrics.json")
    assert said == []
    assert metrics["protocol"]["name"] == name
    assert (metrics["cost"]["parameters_classifier"] == 8 * 3 + 3) == CLOSED[name].linear
    assert (metrics["n_training"], metrics["n_views"]) == (96, 1)
    assert metrics["top1"]["mean"] > 40
    assert metrics["selected"]["n_images"] > 0


class TestNotes:
    @pytest.mark.parametrize(
        ("stored", "options", "crops", "note"),
        [
            (3, {}, {"n_crops": 2, "evaluation_view": False, "drop_path": 0.1}, None),
            (3, {"mix_evaluation_view": True}, {"n_crops": 2, "evaluation_view": True, "drop_path": 0.1}, None),
            (3, {"views": 2}, {"n_crops": 1, "evaluation_view": False, "drop_path": 0.1}, "the same random crop"),
            (3, {"views": 1}, {"n_crops": 0, "evaluation_view": True}, "the evaluation crop"),
            (1, {"mix_evaluation_view": True}, {"n_crops": 0, "evaluation_view": True}, "the evaluation crop"),
        ],
        ids=str,
    )
    def test_crops_alone_where_there_are_any_and_what_there_is_is_said(self, stored, options, crops, note, tmp_path):
        train, test = write_features(tmp_path / "a", views=stored), write_features(tmp_path / "b", seed=1)
        train.spec = replace(train.spec, drop_path=0.1)
        written = probe(train, test, tmp_path / "out", {"cls": replace(CLS, seeds=(0, 1)), "knn": KNN}, **options)
        notes, n_views = written["cls"]["notes"], crops["n_crops"] + crops["evaluation_view"]
        assert (written["cls"]["augmentation"], written["cls"]["n_views"]) == (crops, n_views)
        assert [f"every epoch shows {note}" in n for n in notes if "no augmentation" in n] == [True] * (note is not None)
        assert written["knn"]["augmentation"] == {"n_crops": 0, "evaluation_view": True}
        order = "order of images and crops:" if n_views > 1 else "order of images:"
        assert any(f"all 2 seeds see the same {order}" in n for n in notes)
        assert any("drop_path 0.1" in n for n in notes) == ("drop_path" in crops)

    @pytest.mark.parametrize(
        ("changed", "notes"),
        [
            ({"batch_size": 512, "drop_last": True}, ["a step has 128, where the official code, .* 512/256 = 2$"]),
            ({"batch_size": 160}, ["batch_size 160, but 128 training images: a step has 128, .*160/256 = 0.625$"]),
            ({"batch_size": 50, "drop_last": True}, ["28 of 128 training images are left out of each epoch"]),
            ({"batch_size": 128}, []),
        ],
        ids=str,
    )
    def test_what_a_step_really_is(self, changed, notes, sets, tmp_path):
        plan = replace(CLS, recipe=replace(RECIPE, **changed))
        metrics = probe(*sets, tmp_path / "out", plan)["out"]
        said = [note for note in metrics["notes"] if "augmentation" not in note]
        assert [bool(re.search(pattern, note)) for pattern, note in zip(notes, said, strict=True)] == [True] * len(notes)
        assert metrics["recipe"]["drop_last"] == changed.get("drop_last", False)

    def test_classes_that_no_mean_includes(self, tmp_path):
        labels = np.zeros((40, 3))
        labels[::2, 0] = labels[::3, 1] = 1
        notes = probe(*both(tmp_path, multilabel=True, labels=labels), tmp_path / "out", PLAN)["out"]["notes"]
        said = [re.match(r"1 of 3 classes have no (\w+) image", note) for note in notes if "classes" in note]
        assert [match[1] for match in said] == ["training", "test"]


class TestSubsetsAndBlocks:
    @pytest.mark.parametrize("drawn", [False, True])
    def test_labels_of_other_rows_do_not_matter(self, drawn, tmp_path):
        """Nor those of rows that another seed has drawn, where settings are selected on what each has."""
        test, scrambled = write_features(tmp_path / "t", 64, seed=1), np.arange(96) % 3
        others = np.arange(96) >= 60 if drawn else np.arange(96) % 2 == 1
        scrambled[others] = (scrambled[others] + 1) % 3
        plan = replace(PLAN, base_lrs=(0.1, 0.5), recipe=replace(RECIPE, order="own" if drawn else "shared"))
        subset = (lambda seed, rows: rows[rows < 60][seed::2][:25]) if drawn else np.arange(0, 96, 2)
        results = []
        for name, labels in (("a", None), ("b", scrambled)):
            train = write_features(tmp_path / f"f{name}", labels=labels)
            results.append(probe(train, test, tmp_path / name, plan, subset=subset)[name])
        assert results[0]["selected"] == results[1]["selected"]
        assert results[0]["selected"]["n_images"] == 2 * round(0.1 * (25 if drawn else 48))
        for seed in (0, 3):
            assert len(weights(tmp_path / "a", tmp_path / "b", seed=seed)) == 1

    @pytest.mark.parametrize(
        "plan",
        [
            replace(PLAN, **OWN),
            replace(CLS, seeds=(0, 3), **OWN),
            HeadPlan(HeadSpec("cls"), seeds=(0, 3), closed=make_closed("ridge")),
        ],
        ids=["tokens", "vectors", "closed"],
    )
    def test_each_seed_may_draw_its_own(self, plan, sets, tmp_path):
        """What it reaches is what it would alone."""

        def draw(seed, rows):
            return percentage(sets[0].labels, 30, seed, rows)

        metrics = run.probe(*sets, tmp_path / "out", plan, subset=draw)["out"]
        assert (metrics["n_training"], metrics["seeds"]) == (38, [0, 3])
        usable = np.flatnonzero(sets[0].labelled)
        for i, seed in enumerate((0, 3)):
            alone = run.probe(*sets, tmp_path / str(seed), replace(plan, seeds=(seed,)), subset=draw(seed, usable))[str(seed)]
            for measure in ("top1", *([REACHED] if plan.closed is None else [])):
                assert metrics[measure]["values"][i] == alone[measure]["values"][0]
            np.testing.assert_array_equal(right(tmp_path / "out")[i], right(tmp_path / str(seed))[0])
            ids = "\n".join(sets[0].ids[row] for row in draw(seed, usable))
            assert metrics["drawn"][str(seed)] == xxhash.xxh3_128_hexdigest(ids.encode())
            if plan.closed is None:
                assert len(weights(tmp_path / "out", tmp_path / str(seed), seed=seed)) == 1

    def test_block(self, tmp_path):
        train, test = both(tmp_path, 96, blocks=(0, 1))
        scores = [probe(train, test, tmp_path / str(b), CLS, block=b)[str(b)] for b in (0, 1, None)]
        assert [metrics["block"] for metrics in scores] == [0, 1, 1]
        assert scores[0]["top1"] != scores[1]["top1"] == scores[2]["top1"]
        correct = logits_of(tmp_path / "0/trained/seed0", test).argmax(1).numpy() == test.labels
        assert 100 * correct.mean() == pytest.approx(scores[0]["top1"]["mean"])


def refused(folder: Path, pair, message, heads=PLAN, **options) -> None:
    with pytest.raises(BeyondClsError, match=message):
        probe(*pair, folder / "out", heads, **options)
    assert not (folder / "out").is_dir(), "before anything is trained"


@pytest.mark.parametrize(
    ("labels", "subset", "message"),
    [
        ((np.zeros((40, 3)), None), None, "train: none of the 40 training images has a label"),
        ((np.tile([1, 0, 1], (40, 1)), None), None, "train: no class tells the 40 training images apart"),
        ((None, np.zeros((40, 3))), None, "test: none of the 40 test images has a label"),
        ((np.eye(40, 3), None), np.arange(20, 40), "none of the 20 training images has a label; .* subset"),
        (None, np.arange(1, 40, 3), "all 13 training images are of class 1, expected 2"),
    ],
)
def test_nothing_to_learn_or_measure(labels, subset, message, tmp_path):
    sides = zip(("train", "test"), labels or (None, None), strict=True)
    several = labels is not None
    sets = [write_features(tmp_path / side, 40, seed=i, multilabel=several, labels=y) for i, (side, y) in enumerate(sides)]
    refused(tmp_path, sets, message, KNN, subset=subset)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"n_classes": 4}, r"train has 3 classes, .*other has 4"),
        ({"weights": "v"}, r"encoder-w.*encoder-v.*: weights differ"),
        ({"invalid": range(64)}, "other has no valid, labelled image"),
        ({"multilabel": True}, r"train has one label an image, .*other several labels"),
    ],
)
def test_sets_that_do_not_fit(features, message, sets, tmp_path):
    refused(tmp_path, (sets[0], write_features(tmp_path / "other", 64, seed=2, **features)), message)


@pytest.mark.parametrize(
    ("train", "test", "head", "message"),
    [
        ({"classes": "abc", "labels": [*range(3)] * 13 + [7]}, {"classes": "abc"}, HeadSpec(), "has label 7, but 3 classes"),
        ({"cls": False}, {"cls": False}, HeadSpec("cls"), r"has no \[cls\] tokens"),
        ({"maps": ()}, {"maps": ()}, HeadSpec("cls-attention"), "has no attention maps"),
        ({}, {}, HeadSpec("abmilp", {"blocks": [1, 4]}), "no array 'patch/block4/view0'; it has: .*patch/block1/view0"),
        ({}, {}, HeadSpec("cls-attention", {"of": "joined"}), "joined/attention/cls', .* --joined"),
        # The test set lacks it, or the block of the training set, at which it is read.
        ({"maps": ("cls", "centre")}, {}, HeadSpec("central-attention"), "test has no array 'attention/centre/block1/view0'"),
        ({"blocks": (0, 1)}, {"blocks": (0,)}, HeadSpec(), r"test has no array '(patch|cls|average)/block1/view0'"),
    ],
    ids=str,
)
def test_what_a_head_reads_is_missing(train, test, head, message, tmp_path):
    pair = [write_features(tmp_path / name, 40, **o) for name, o in (("train", train), ("test", test))]
    refused(tmp_path, pair, message, {"ok": HeadPlan(HeadSpec("average"), RECIPE), "bad": HeadPlan(head, Recipe())})


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        (HeadPlan(HeadSpec(final_norm=True), RECIPE), {}, "has no final norm"),
        *((PLAN, {"views": views}, rf"views is {views}, expected 1 to 1") for views in (0, 2)),
        ({}, {}, "heads is empty"),
        *(({name: PLAN}, {}, "expected a name for a folder") for name in ("a/b", "..", "", ".")),
        (replace(CLS, recipe=Recipe(3, 32, base_lr=1e60, warmup_epochs=0)), {}, r"base_lr 1e\+60, .* diverged in epoch 1"),
        (PLAN, {"subset": np.ones(128, bool)}, r"a subset is bool \(128,\)"),
        (PLAN, {"subset": [3, 128]}, "rows 3 to 128, but .*train has 128 images"),
        (PLAN, {"subset": [-1, 3]}, "rows -1 to 3"),
        (PLAN, {"subset": []}, "train has no valid, labelled image among the rows of the subset"),
        (PLAN, {"subset": [3]}, "1 image to train on, expected 2"),
        (PLAN, {"subset": lambda seed, rows: rows[:9]}, "order of out is 'shared', expected 'own'"),
        (replace(PLAN, **OWN), {"subset": lambda seed, rows: rows[: 10 + seed]}, "seeds draw 10 or 13 images"),
        (replace(PLAN, **OWN), {"subset": lambda seed, rows: rows[:0]}, "subset draws no rows"),
        (replace(PLAN, **OWN), {"subset": lambda seed, rows: rows[:9] + 128}, "not among those it is given"),
    ],
)
def test_what_cannot_be(heads, options, message, sets, tmp_path):
    refused(tmp_path, sets, message, heads, **options)


@pytest.mark.parametrize("heads", [PLAN, KNN], ids=["abmilp", "knn"])
def test_places_and_memory_are_looked_at_before_anything_trains(heads, sets, tmp_path, monkeypatch):
    monkeypatch.setattr("probe.passes.HeadPasses.train", lambda *_: pytest.fail("it trains"))
    monkeypatch.setattr("probe.passes.vectors_fit", lambda *_: False)
    if heads is KNN:
        refused(tmp_path, sets, "memory does not suffice for the vectors of 128 images", heads)
    (tmp_path / "out").touch()
    refused(tmp_path, sets, r"out cannot be written: .*another kind of file has this name", heads)


class TestWhatOthersMade:
    """A head takes the place of what its run found in the folder, and of nothing else."""

    def test_of_two_heads_that_train_at_once_the_second_stays_beside(self, sets, tmp_path):
        out, begun = tmp_path / "out", []

        def meanwhile(_):
            if not begun:
                begun.append(probe(*sets, out, CLS))
                begun.append(contents(out))

        with pytest.raises(StoreError, match=r"keeps it; .*\.unfinished/out\."):
            probe(*sets, out, PLAN, progress=meanwhile)
        assert contents(out) == begun[1]
        assert read_result(out / "metrics.json") == begun[0]["out"]
        (kept,) = (tmp_path / ".unfinished").glob("out.*")
        probe(*sets, tmp_path / "alone", PLAN)
        assert contents(kept).keys() == contents(tmp_path / "alone").keys()
        assert (kept / "curves.csv").read_bytes() == (tmp_path / "alone/curves.csv").read_bytes()
        probe(*sets, out, PLAN)  # what a run finds, it replaces
        assert read_result(out / "metrics.json")["aggregator"] == "abmilp"

    def test_checkpoints_of_others_stay(self, sets, tmp_path):
        with pytest.raises(Stopped):
            probe(*sets, tmp_path / "out", PLAN, stops=lambda: True)
        (begun,) = (tmp_path / ".unfinished/out").iterdir()
        probe(*sets, tmp_path / "out", CLS)
        assert list((tmp_path / ".unfinished/out").iterdir()) == [begun]
        probe(*sets, tmp_path / "out", PLAN)
        assert not (tmp_path / ".unfinished").exists()

    def test_metrics_of_another_program_stay(self, sets, tmp_path):
        (tmp_path / "metrics.json").write_text("loss: 0.1")
        trained = []
        with pytest.raises(BeyondClsError, match=r"no description\.json .*, so it is not replaced"):
            probe(*sets, tmp_path, PLAN, progress=trained.append)
        assert (contents(tmp_path), trained) == ({"metrics.json": b"loss: 0.1"}, [])
