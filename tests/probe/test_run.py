"""`probe()` from feature sets to files: what is written, for which heads, and what is refused."""

import csv
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import xxhash

from probe.checkpoint import Stopped
from probe.closed import CLOSED, make_closed
from probe.cost import Cost
from probe.grid import HeadPlan, HeadSpec, Member
from probe.metrics import MULTILABEL, PER_IMAGE
from probe.needs import TooLarge
from probe.recipe import Recipe
from probe.result_files import REACHED, read_result
from probe.run import n_epochs, probe
from probe.saved import load_with
from probe.subsets import percentage
from store import BeyondClsError, StoreError
from tests.features import write_features
from tests.folders import files as contents

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Recipe(epochs=3, batch_size=32, warmup_epochs=1, base_lr=0.5)
PLAN = HeadPlan(recipe=RECIPE, seeds=(0, 3))
WILD = HeadPlan(HeadSpec("cls"), replace(RECIPE, base_lr=1e60, warmup_epochs=0))
OWN_ORDER = replace(PLAN, recipe=replace(RECIPE, order="own"))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return write_features(folder / "train", 128), write_features(folder / "test", 70, seed=1, invalid=(5, 6))


BESIDE = ("curves.csv", "description.json", "metrics.json")


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


class TestWhatIsWritten:
    def test_of_one_plan(self, sets, tmp_path):
        written = probe(*sets, tmp_path / "out", PLAN, notes={"command": "beyondcls probe"})
        assert list(written) == ["out"]
        metrics = written["out"]
        of_seeds = [f"seed{seed}.{end}" for seed in (0, 3) for end in ("json", "safetensors")]
        trained = ["correct.npz", "record.json", *of_seeds, "weights.npy"]
        assert files(tmp_path) == [f"out/{file}" for file in (*BESIDE, *(f"trained/{name}" for name in trained))]
        assert read_result(tmp_path / "out/metrics.json") == metrics
        for measure in ("top1", "top5", "entropy"):
            values = metrics[measure]["values"]
            assert len(values) == 2
            assert metrics[measure]["mean"] == pytest.approx(np.mean(values))
            assert metrics[measure]["std"] == pytest.approx(np.std(values, ddof=1))
        counts = {"n_training": 128, "n_test": 68, "n_views": 1, "n_tokens": 9, "n_classes": 3, "n_parameters": 9 + 27}
        assert {name: metrics[name] for name in counts} == counts
        said = {"encoder": "encoder-w", "block": 1, "seeds": [0, 3], "command": "beyondcls probe", **PLAN.head.to_dict()}
        assert {name: metrics[name] for name in said} == said
        notes = ["no augmentation", "all 2 seeds see the same order of images"]
        assert [note.split(":")[0] for note in metrics["notes"]] == notes
        assert metrics["features"] == {"training": sets[0].spec.key, "test": sets[1].spec.key}
        assert metrics["recipe"] == {**vars(RECIPE)}
        assert metrics["selected"]["on"] == "nothing"
        rows = list(csv.DictReader((tmp_path / "out/curves.csv").open()))
        assert [(r["seed"], r["epoch"]) for r in rows] == [(s, e) for s in "03" for e in "123"]
        assert set(rows[0]) == {"seed", "epoch", "loss", "train_top1", "entropy", *PER_IMAGE}
        for measure in ("top1", "train_top1"):
            assert [float(rows[i][measure]) for i in (2, 5)] == metrics[measure]["values"]
        weights = np.load(tmp_path / "out/trained/weights.npy")
        assert weights.shape == (68, 9)
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
        described = json.loads((tmp_path / "out/trained/seed3.json").read_text())
        assert (described["seed"], described["block"], described["encoder_weights"]) == (3, 1, "w")
        assert described["result"]["top1"] == metrics["top1"]["values"][1]

    def test_of_several_heads(self, sets, tmp_path):
        heads = {"one": PLAN, "cls": HeadPlan(HeadSpec("cls"), replace(RECIPE, epochs=2), seeds=(1,))}
        heads["nearest"] = HeadPlan(HeadSpec("average"), closed=make_closed("knn", ks=(1, 5)))
        written = probe(*sets, tmp_path / "out", heads)
        assert list(written) == ["one", "cls", "nearest"]
        assert files(tmp_path / "out/nearest") == [*BESIDE, "trained/correct.npz"]
        for name, metrics in written.items():
            correct = right(tmp_path / "out" / name)
            assert correct.shape == (max(1, len(metrics["seeds"])), 68)
            assert (100 * correct.mean(1)).tolist() == pytest.approx(metrics["top1"]["values"])
        assert "trained/weights.npy" not in files(tmp_path / "out/cls")
        assert len(list(csv.DictReader((tmp_path / "out/cls/curves.csv").open()))) == 2
        for name, metrics in written.items():
            assert read_result(tmp_path / "out" / name / "metrics.json") == metrics
        assert written["cls"]["n_tokens"] is None
        assert written["nearest"]["protocol"] == {"name": "knn", **written["nearest"]["protocol"]}
        assert written["nearest"]["seeds"] == []
        assert written["nearest"]["cost"] == asdict(Cost(0, None, None, 2 * 9 * 8))
        alone = probe(*sets, tmp_path / "alone", PLAN)["alone"]
        assert alone["top1"] == written["one"]["top1"]

    def test_caution_of_the_encoder_is_noted_by_heads_that_read_cls(self, sets, tmp_path, monkeypatch):
        monkeypatch.setitem(sets[0].attributes, "cls_caution", "not fine-tuned")
        heads = {"cls": HeadPlan(HeadSpec("cls"), RECIPE), "average": HeadPlan(HeadSpec("average"), RECIPE)}
        heads |= {"knn": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=(1, 5)))}
        written = probe(*sets, tmp_path / "out", heads)
        noted = {name for name, metrics in written.items() if "[cls]: not fine-tuned" in metrics["notes"]}
        assert noted == {"cls", "knn"}

    def test_an_earlier_run_leaves_nothing_behind(self, sets, tmp_path):
        probe(*sets, tmp_path / "out", PLAN)
        (tmp_path / "out/own.txt").write_text("of the user")
        probe(*sets, tmp_path / "out", HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0,)))
        trained = ["trained/correct.npz", "trained/record.json", "trained/seed0.json", "trained/seed0.safetensors"]
        assert files(tmp_path / "out") == [*BESIDE, "own.txt", *trained]
        probe(*sets, tmp_path / "out", HeadPlan(HeadSpec("cls"), closed=make_closed("ridge")))
        assert files(tmp_path / "out") == [*BESIDE, "own.txt", "trained/correct.npz"]
        assert right(tmp_path / "out").shape == (1, 68)
        assert not list(csv.DictReader((tmp_path / "out/curves.csv").open()))

    def test_two_probes_are_of_the_same_images_or_say_that_they_are_not(self, sets, tmp_path):
        """Only then can they be compared image by image."""
        same, order = write_features(tmp_path / "same", 70, seed=1, invalid=(5, 6)), [*range(10, 70), *range(10)]
        others = [write_features(tmp_path / "all", 70, seed=1), write_features(tmp_path / "moved", 70, seed=1, order=order)]
        plan, digests = HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=[1])), []
        for number, test in enumerate((sets[1], same, *others)):
            digests.append(probe(sets[0], test, tmp_path / str(number), plan)[str(number)]["test_images"])
        valid = "\n".join(f"{i:06d}" for i in range(70) if i not in (5, 6))
        assert digests[0] == digests[1] == xxhash.xxh3_128_hexdigest(valid.encode())
        assert len(set(digests)) == 3

    def test_progress_counts_every_epoch_of_every_member(self, sets, tmp_path):
        plans = {
            "a": replace(PLAN, base_lrs=(0.1, 0.5, 1.0)),
            "b": PLAN,
            "c": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=[1])),
        }
        done = []
        probe(*sets, tmp_path / "out", plans, progress=done.append)
        assert sum(done) == n_epochs(plans.values()) == 3 * 2 * (3 + 1) + 3 * 2


class TestStop:
    def test_a_run_that_was_asked_to_stop_goes_on_with_the_same_bytes(self, sets, tmp_path):
        plan, asked, said = HeadPlan(recipe=Recipe(4, 32, warmup_epochs=0), seeds=(0, 1)), iter([False, True]), []
        with pytest.raises(Stopped):
            probe(*sets, tmp_path / "stopped/h", plan, stops=lambda: next(asked))
        assert not (tmp_path / "stopped/h").exists()
        probe(*sets, tmp_path / "stopped/h", plan, say=said.append)
        assert "going on after 2 of 4 epochs" in said
        probe(*sets, tmp_path / "whole/h", plan)
        assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")

    def test_what_is_left_to_do_after_the_last_epoch_is_done(self, sets, tmp_path):
        plan = HeadPlan(recipe=Recipe(1, 32, warmup_epochs=0), seeds=(0,))
        probe(*sets, tmp_path / "h", plan, stops=lambda: True)
        assert (tmp_path / "h/metrics.json").exists()


class TestEpochs:
    PLANS: ClassVar = {
        "grid": HeadPlan(recipe=RECIPE, seeds=(0, 3), base_lrs=(0.1, 0.5)),
        "cls": HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0,)),
        "near": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=[3])),
    }

    def test_each_of_each_member(self, sets, tmp_path):
        epochs = []
        described = probe(*sets, tmp_path / "told", self.PLANS, on_epoch=epochs.append)
        probe(*sets, tmp_path / "silent", self.PLANS)
        assert contents(tmp_path / "told") == contents(tmp_path / "silent")
        assert len(epochs) == n_epochs(self.PLANS.values()) == 3 * (4 + 2 + 1)
        assert not any(one.is_replayed for one in epochs)
        tried = {one.member for one in epochs if one.stage == "selection"}
        assert tried == {Member("grid", lr, 0.0, seed) for lr in (0.1, 0.5) for seed in (0, 3)}
        trained = [one for one in epochs if one.stage == "training"]
        chosen = described["grid"]["selected"]["base_lr"]
        assert {one.member for one in trained} == {
            *(Member("grid", chosen, 0.0, s) for s in (0, 3)),
            Member("cls", 0.5, 0.0, 0),
        }
        for name in ("grid", "cls"):
            with (tmp_path / "told" / name / "curves.csv").open() as file:
                rows = [{column: float(text) for column, text in row.items()} for row in csv.DictReader(file)]
            of_head = sorted((one for one in trained if one.member.head == name), key=lambda one: one.member.seed)
            assert [
                {"seed": one.member.seed, **{n: v for n, v in one.measures.items() if n != "lr"}} for one in of_head
            ] == rows
        assert all({"epoch", "lr", "loss", "train_top1"} == one.measures.keys() for one in epochs if one.stage == "selection")

    def test_their_learning_rate_is_that_of_the_last_step(self, sets, tmp_path):
        """Four steps an epoch: one epoch of warm-up, then half a cosine over two."""
        epochs = []
        probe(*sets, tmp_path / "h", replace(PLAN, seeds=(0,)), on_epoch=epochs.append)
        peak = 0.5 * 32 / 256
        expected = [peak * 3 / 4, *(peak * (1 + np.cos(np.pi * done / 2)) / 2 for done in (3 / 4, 7 / 4))]
        assert [one.measures["lr"] for one in epochs] == pytest.approx(expected)

    def test_a_run_that_goes_on_begins_with_those_of_the_one_before(self, sets, tmp_path):
        plan, whole, first, rest = self.PLANS["grid"], [], [], []
        probe(*sets, tmp_path / "whole/h", plan, on_epoch=whole.append)
        asked = iter(
            [False] * 5
        )  # after the last epoch of a pass it is not asked: two passes of the selection, one epoch of training
        with pytest.raises(Stopped):
            probe(*sets, tmp_path / "h", plan, on_epoch=first.append, stops=lambda: next(asked, True))
        probe(*sets, tmp_path / "h", plan, on_epoch=rest.append)
        assert first == whole[: len(first)]
        assert [replace(one, is_replayed=False) for one in rest] == whole
        assert [one.is_replayed for one in rest] == [True] * len(first) + [False] * (len(whole) - len(first))
        assert 0 < len(first) < len(whole)


def right(folder):
    """Which test images each seed is right about."""
    with np.load(folder / "trained/correct.npz", allow_pickle=False) as file:
        assert list(file) in (["correct"], ["correct", "converged"])
        assert file["correct"].dtype == bool
        return file["correct"]


def logits_of(stem, test):
    """What a saved probe of one kind of tokens makes of the valid test images of a store."""
    head, described = load_with(stem)
    (kind,) = head.aggregator.reads
    tokens = test.array(f"{kind}/block{described['block']}/view0").rows(np.flatnonzero(test.labelled))
    with torch.no_grad():
        return head({kind: torch.from_numpy(tokens).float()})[0]


class TestOrder:
    def test_own_is_as_if_each_seed_were_the_only_one(self, sets, tmp_path):
        both = probe(*sets, tmp_path / "both", OWN_ORDER)["both"]
        for i, seed in enumerate(OWN_ORDER.seeds):
            probe(*sets, tmp_path / f"s{seed}", replace(OWN_ORDER, seeds=(seed,)))
            one = read_result(tmp_path / f"s{seed}/metrics.json")
            assert one["top1"]["values"][0] == both["top1"]["values"][i]
            names = [f"{folder}/trained/seed{seed}.safetensors" for folder in ("both", f"s{seed}")]
            assert (tmp_path / names[0]).read_bytes() == (tmp_path / names[1]).read_bytes()

    def test_shared_is_one_order_for_all(self, sets, tmp_path):
        shared = probe(*sets, tmp_path / "shared", PLAN)["shared"]["top1"]["values"]
        own = probe(*sets, tmp_path / "own", OWN_ORDER)["own"]["top1"]["values"]
        assert shared[0] == own[0]  # seed 0 is the shared order
        assert shared[1] != own[1]


class TestPlaceOfTheFeatures:
    def test_memory_and_stream_learn_the_same_up_to_order(self, sets, tmp_path):
        plan = HeadPlan(HeadSpec("abmilp"), replace(RECIPE, epochs=20, batch_size=128), seeds=(0,))
        runs = [probe(*sets, tmp_path / p, plan, placement=p)[p] for p in ("memory", "stream")]
        losses = [float(list(csv.DictReader((tmp_path / p / "curves.csv").open()))[-1]["loss"]) for p in ("memory", "stream")]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # one batch an epoch: order cannot matter
        assert runs[0]["top1"]["mean"] == pytest.approx(runs[1]["top1"]["mean"], abs=2)

    def test_heads_of_one_recipe_share_one_reading(self, sets, tmp_path):
        """Learning rate, weight decay, seeds and the head itself may differ."""
        heads = {
            "a": PLAN,
            "b": HeadPlan(HeadSpec("abmilp", {"depth": 2}), replace(RECIPE, base_lr=0.1, weight_decay=0.2), seeds=(7,)),
            "c": replace(PLAN, recipe=replace(RECIPE, epochs=2)),
        }
        said: list[str] = []
        probe(*sets, tmp_path / "out", heads, say=said.append)
        assert sum("features in memory" in s for s in said) == 2


class TestNothingToLearnOrMeasure:
    """Before anything trains, for heads of any kind."""

    HEADS: ClassVar = {"abmilp": PLAN, "knn": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=(3,)))}

    @pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (lambda n: (np.zeros((n, 3)), None), "train: none of the 40 training images has a label; name a set"),
            (lambda n: (np.tile([1, 0, 1], (n, 1)), None), "train: no class tells the 40 training images apart: each has all"),
            (lambda n: (None, np.zeros((n, 3))), "test: none of the 40 test images has a label"),
        ],
    )
    def test_of_several_labels(self, heads, labels, message, tmp_path):
        sides = zip(("train", "test"), labels(40), strict=True)
        sets = [write_features(tmp_path / side, 40, seed=i, multilabel=True, labels=y) for i, (side, y) in enumerate(sides)]
        with pytest.raises(StoreError, match=message):
            probe(*sets, tmp_path / "out", heads)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
    def test_a_subset(self, heads, tmp_path):
        """The set has labels, but not its images that are used: none, or those of one class."""
        several = np.zeros((40, 3))
        several[:5, 0] = 1
        sets = [write_features(tmp_path / side, 40, multilabel=True, labels=several) for side in ("a", "b")]
        single = [write_features(tmp_path / side, 40) for side in ("c", "d")]
        for pair, rows, message in (
            (sets, np.arange(20, 40), "none of the 20 training images has a label; name a set, or a subset"),
            (single, np.arange(1, 40, 3), "all 13 training images are of class 1, expected 2 classes or more"),
        ):
            with pytest.raises(StoreError, match=message):
                probe(*pair, tmp_path / "out", heads, subset=rows)
        assert probe(*sets, tmp_path / "out", heads, subset=np.arange(30))

    def test_classes_that_no_mean_includes_are_noted(self, tmp_path):
        labels = np.zeros((40, 3))
        labels[::2, 0] = labels[::3, 1] = 1
        sets = [write_features(tmp_path / side, 40, seed=i, multilabel=True, labels=labels) for i, side in enumerate("ab")]
        notes = probe(*sets, tmp_path / "out", PLAN)["out"]["notes"]
        assert [note for note in notes if "classes" in note] == [
            "1 of 3 classes have no training image",
            "1 of 3 classes have no test image and are in no mean over classes",
        ]


@pytest.mark.parametrize("heads", TestNothingToLearnOrMeasure.HEADS.values(), ids=TestNothingToLearnOrMeasure.HEADS)
def test_a_place_for_results_is_looked_at_before_anything_trains(heads, sets, tmp_path, monkeypatch):
    (tmp_path / "out").touch()
    monkeypatch.setattr("probe.passes.HeadPasses.train", lambda *_: pytest.fail("it trains"))
    with pytest.raises(StoreError, match=r"out cannot be written: .*out: Not a directory; another kind of file has this name"):
        probe(*sets, tmp_path / "out", heads)


class TestSeveralLabelsAnImage:
    @pytest.fixture
    def sets(self, tmp_path):
        common = {"multilabel": True, "n_classes": 4, "signal": 4.0}
        return write_features(tmp_path / "train", 128, **common), write_features(tmp_path / "test", 70, seed=1, **common)

    def test_end_to_end(self, sets, tmp_path):
        plan = HeadPlan(HeadSpec("abmilp"), replace(RECIPE, epochs=30, base_lr=2.0), seeds=(0,), base_lrs=(0.001, 2.0))
        heads = {"abmilp": plan, "ridge": HeadPlan(HeadSpec("average"), closed=make_closed("ridge"))}
        written = probe(*sets, tmp_path / "out", heads)
        for metrics in written.values():
            assert MULTILABEL.keys() <= metrics.keys()
            assert "top1" not in metrics
            assert metrics["selected"]["by"] == "map"
            assert metrics["n_classes"] == 4
        assert written["abmilp"]["selected"]["base_lr"] == 2.0
        assert not list((tmp_path / "out").glob("*/trained/correct.npz"))
        assert written["abmilp"]["selected"]["on"] == "10 % of the training images, at random"
        assert written["abmilp"]["map"]["mean"] > 60
        logits = logits_of(tmp_path / "out/abmilp/trained/seed0", sets[1])
        for name, measure in MULTILABEL.items():
            expected = measure(logits, torch.from_numpy(sets[1].labels))
            assert written["abmilp"][name]["mean"] == pytest.approx(float(expected), abs=1e-3)
        header = (tmp_path / "out/abmilp/curves.csv").read_text().splitlines()[0].split(",")
        assert MULTILABEL.keys() <= set(header)


class TestProtocolsWithoutSteps:
    @pytest.mark.parametrize("name", CLOSED)
    def test_through_probe(self, name, sets, tmp_path):
        said: list[int] = []
        plan = HeadPlan(HeadSpec("cls"), closed=make_closed(name, **{CLOSED[name].grid: [5, 20]}))
        metrics = probe(*sets, tmp_path / "out", plan, progress=said.append)["out"]
        assert said == []
        assert metrics["protocol"]["name"] == name
        assert (metrics["cost"]["parameters_classifier"] == 8 * 3 + 3) == CLOSED[name].linear
        assert metrics["n_training"] == 128
        assert metrics["top1"]["mean"] > 40
        assert metrics["selected"]["n_images"] > 0
        assert read_result(tmp_path / "out/metrics.json") == metrics

    def test_takes_view_0(self, tmp_path):
        train, test = write_features(tmp_path / "a", 96, views=3), write_features(tmp_path / "b", 64, seed=1)
        plan = HeadPlan(HeadSpec("average"), closed=make_closed("ridge", alphas=[1.0]))
        metrics = [probe(train, test, tmp_path / str(v), plan, views=v)[str(v)] for v in (1, 3)]
        assert metrics[0] == metrics[1]
        assert metrics[1]["n_views"] == 1

    def test_says_when_memory_does_not_suffice(self, sets, tmp_path, monkeypatch):
        monkeypatch.setattr("probe.passes.vectors_fit", lambda *_: False)
        with pytest.raises(BeyondClsError, match="memory does not suffice for the vectors of 128 images; use a subset"):
            probe(*sets, tmp_path / "out", HeadPlan(HeadSpec("cls"), closed=make_closed("knn")))


def test_heads_that_do_not_fit_into_memory_together_train_one_after_the_other(sets, tmp_path, monkeypatch):
    plans = {
        name: HeadPlan(HeadSpec("abmilp", {"depth": depth}), RECIPE, seeds=(0, 1), base_lrs=(0.01, 0.1))
        for name, depth in (("a", 1), ("b", 2), ("c", 3))
    }
    probe(*sets, tmp_path / "together", plans)
    passes, said = [], []

    def check(families, *_):
        passes.append([family.names[0].head for family in families])
        if len(families) > 1:
            raise TooLarge("3 heads need 9 GB, 1 GB is free")

    monkeypatch.setattr("probe.passes.check_memory", check)
    probe(*sets, tmp_path / "apart", plans, say=said.append)
    of_pass = [["a", "b", "c"], ["a"], ["b", "c"], ["b"], ["c"]]
    assert passes == of_pass * (len(passes) // 5)
    assert [line for line in said if "memory does not suffice" in line]
    for file in files(tmp_path / "together"):
        if not file.endswith("description.json"):  # which says when
            assert (tmp_path / "apart" / file).read_bytes() == (tmp_path / "together" / file).read_bytes(), file

    passes.clear()
    changed = {name: replace(plans[name], head=HeadSpec("abmilp", {"depth": 4})) for name in ("b", "c")}
    probe(*sets, tmp_path / "apart", plans | changed)
    assert passes == [["b", "c"], ["b"], ["c"]] * (len(passes) // 3), "one that is in place has no pass"

    def refuse(*_):
        raise TooLarge("1 head needs 9 GB")

    monkeypatch.setattr("probe.passes.check_memory", refuse)
    with pytest.raises(TooLarge, match="needs 9 GB"):
        probe(*sets, tmp_path / "none", plans)


class TestAugmentation:
    @pytest.mark.parametrize(
        ("stored", "options", "shown", "note"),
        [
            (3, {}, (2, False), None),
            (3, {"mix_evaluation_view": True}, (2, True), None),
            (3, {"views": 2}, (1, False), "no augmentation: every epoch shows the same random crop of each image"),
            (3, {"views": 1}, (0, True), "no augmentation: every epoch shows the evaluation crop of each image"),
            (1, {"mix_evaluation_view": True}, (0, True), "no augmentation: every epoch shows the evaluation crop"),
        ],
        ids=str,
    )
    def test_crops_alone_where_there_are_any_and_what_there_is_is_said(self, stored, options, shown, note, tmp_path):
        train, test = write_features(tmp_path / "a", views=stored), write_features(tmp_path / "b", seed=1)
        heads = {
            "cls": HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0, 1)),
            "knn": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=[1])),
        }
        written = probe(train, test, tmp_path / "out", heads, **options)
        assert written["cls"]["augmentation"] == dict(zip(("n_crops", "evaluation_view"), shown, strict=True))
        assert written["cls"]["n_views"] == sum(shown)
        assert [n.startswith(note) for n in written["cls"]["notes"] if "augmentation" in n] == ([] if note is None else [True])
        assert written["knn"]["augmentation"] == {"n_crops": 0, "evaluation_view": True}
        crops = "order of images and crops:" if sum(shown) > 1 else "order of images:"
        assert any(f"all 2 seeds see the same {crops}" in n for n in written["cls"]["notes"])

    @pytest.mark.parametrize(("views", "recorded"), [(3, {"drop_path": 0.1}), (1, {})])
    def test_stochastic_depth_is_recorded_where_crops_are_shown(self, views, recorded, tmp_path):
        train, test = write_features(tmp_path / "a", views=3), write_features(tmp_path / "b", seed=1)
        train.spec = replace(train.spec, drop_path=0.1)
        written = probe(train, test, tmp_path / "out", {"cls": HeadPlan(HeadSpec("cls"), RECIPE)}, views=views)["cls"]
        shown = {"n_crops": views - 1, "evaluation_view": views == 1}
        assert written["augmentation"] == shown | recorded
        assert any("drop_path 0.1" in note for note in written["notes"]) == bool(recorded)


class TestSteps:
    @pytest.mark.parametrize(
        ("changed", "notes"),
        [
            ({"batch_size": 512, "drop_last": True}, ["a step has 128, where the official code, .* 512/256 = 2$"]),
            ({"batch_size": 160}, ["batch_size 160, but 128 training images: a step has 128, .*160/256 = 0.625$"]),
            ({"batch_size": 50, "drop_last": True}, ["drop_last: 28 of 128 training images are left out of each epoch"]),
            ({"batch_size": 64, "drop_last": True}, []),
            ({"batch_size": 50}, []),
        ],
        ids=str,
    )
    def test_what_a_step_really_is(self, changed, notes, sets, tmp_path):
        plan = HeadPlan(HeadSpec("cls"), replace(RECIPE, order="own", **changed), seeds=(0, 1))
        metrics = probe(*sets, tmp_path / "out", plan)["out"]
        said = [note for note in metrics["notes"] if "augmentation" not in note]
        assert len(said) == len(notes)
        assert all(re.search(pattern, note) for pattern, note in zip(notes, said, strict=True)), said
        assert metrics["recipe"]["drop_last"] == changed.get("drop_last", False)


class TestSubsetsAndBlocks:
    def test_only_the_subset_is_learnt_from(self, tmp_path):
        """Labels of other rows do not matter."""
        rows, test = np.arange(0, 96, 2), write_features(tmp_path / "t", 64, seed=1)
        scrambled = np.arange(96) % 3
        scrambled[1::2] = (scrambled[1::2] + 1) % 3
        for name, labels in (("a", None), ("b", scrambled)):
            train = write_features(tmp_path / f"f{name}", labels=labels)
            probe(train, test, tmp_path / name, replace(PLAN, base_lrs=(0.1, 0.5)), subset=rows)
        names = [tmp_path / name / "trained/seed3.safetensors" for name in "ab"]
        assert names[0].read_bytes() == names[1].read_bytes()

    @pytest.mark.parametrize(
        "plan",
        [
            OWN_ORDER,
            HeadPlan(HeadSpec("cls"), replace(RECIPE, order="own"), seeds=(0, 3)),
            HeadPlan(HeadSpec("cls"), seeds=(0, 3), closed=make_closed("ridge")),
        ],
        ids=["tokens", "vectors", "closed"],
    )
    def test_each_seed_may_draw_its_own(self, plan, sets, tmp_path):
        """What it reaches is what it would alone, and a second run keeps it."""

        def draw(seed, rows):
            return percentage(sets[0].labels, 30, seed, rows)

        metrics = probe(*sets, tmp_path / "out", plan, subset=draw)["out"]
        assert (metrics["n_training"], metrics["seeds"]) == (38, [0, 3])
        usable, hits = np.flatnonzero(sets[0].labelled), np.load(tmp_path / "out/trained/correct.npz")
        for i, seed in enumerate((0, 3)):
            alone = probe(*sets, tmp_path / str(seed), replace(plan, seeds=(seed,)), subset=draw(seed, usable))[str(seed)]
            for measure in ("top1", *([REACHED] if plan.closed is None else [])):
                assert metrics[measure]["values"][i] == alone[measure]["values"][0]
            np.testing.assert_array_equal(hits["correct"][i], np.load(tmp_path / f"{seed}/trained/correct.npz")["correct"][0])
            ids = "\n".join(sets[0].ids[row] for row in draw(seed, usable))
            assert metrics["drawn"][str(seed)] == xxhash.xxh3_128_hexdigest(ids.encode())
            if plan.closed is None:
                weights = [(tmp_path / name / f"trained/seed{seed}.safetensors").read_bytes() for name in ("out", str(seed))]
                assert weights[0] == weights[1]

    def test_settings_are_selected_on_what_each_seed_has_drawn(self, tmp_path):
        """Labels of other rows do not matter."""
        test = write_features(tmp_path / "t", 64, seed=1)
        plan = HeadPlan(recipe=replace(RECIPE, order="own", epochs=12), seeds=(0, 3), base_lrs=(0.1, 0.5))
        scrambled = np.arange(96) % 3
        scrambled[60:] = (scrambled[60:] + 1) % 3

        def draw(seed, rows):
            return rows[rows < 60][seed::2][:25]

        for name, labels in (("a", None), ("b", scrambled)):
            train = write_features(tmp_path / f"f{name}", labels=labels)
            metrics = probe(train, test, tmp_path / name, plan, subset=draw)[name]
            assert metrics["selected"]["n_images"] == 2 * round(0.1 * 25)
        for seed in (0, 3):
            files = [(tmp_path / name / f"trained/seed{seed}.safetensors").read_bytes() for name in "ab"]
            assert files[0] == files[1]

    def test_block(self, tmp_path):
        train, test = (write_features(tmp_path / f"set{seed}", seed=seed, blocks=(0, 1)) for seed in (0, 1))
        for aggregator in ("cls", "abmilp"):
            plan = HeadPlan(HeadSpec(aggregator), RECIPE, seeds=(0,))
            metrics = [probe(train, test, tmp_path / f"{aggregator}{b}", plan, block=b) for b in (0, 1, None)]
            scores = [next(iter(m.values())) for m in metrics]
            assert [m["block"] for m in scores] == [0, 1, 1]
            assert scores[0]["top1"] != scores[1]["top1"]
            assert scores[1]["top1"] == scores[2]["top1"]
            correct = logits_of(tmp_path / f"{aggregator}0/trained/seed0", test).argmax(1).numpy() == test.labels
            assert 100 * correct.mean() == pytest.approx(scores[0]["top1"]["mean"])


def refused(folder: Path, pair, message, heads=PLAN, **options) -> None:
    with pytest.raises(BeyondClsError, match=message):
        probe(*pair, folder / "out", heads, **options)
    assert not (folder / "out").exists(), "before anything is trained"


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"n_classes": 4}, r"train has 3 classes, .*other has 4"),
        ({"weights": "v"}, r"encoder-w.*encoder-v.*two encoders or extractions: weights differ"),
        ({"invalid": range(64)}, "other has no valid, labelled image"),
        ({"multilabel": True}, r"train has one label an image, .*other several labels"),
    ],
)
def test_sets_that_do_not_fit(features, message, sets, tmp_path):
    refused(tmp_path, (sets[0], write_features(tmp_path / "other", 64, seed=2, **features)), message)


def test_labels_out_of_range(tmp_path):
    names = ("cat", "dog", "owl")
    bad = write_features(tmp_path / "bad", classes=names, labels=[*range(3)] * 31 + [0, 1, 7])
    refused(tmp_path, (bad, write_features(tmp_path / "b", classes=names)), r"bad has label 7, but 3 classes")


@pytest.mark.parametrize(
    ("aggregator", "options", "message"),
    [
        ("cls", {}, r"has no \[cls\] tokens"),
        ("cls-attention", {}, "has no attention maps"),
        ("central-attention", {}, "has no attention maps"),
        ("abmilp", {"blocks": [1, 4]}, "no array 'patch/block4/view0'; it has: patch/block1/view0"),
        ("cls-attention", {"of": "joined"}, "reads 'joined/attention/cls', of a second feature set; name it with --joined"),
    ],
)
def test_what_a_head_reads_is_missing(aggregator, options, message, tmp_path):
    pair = [write_features(tmp_path / name, cls=False, maps=()) for name in ("a", "b")]
    heads = {"ok": HeadPlan(HeadSpec("average"), RECIPE), "bad": HeadPlan(HeadSpec(aggregator, options), Recipe())}
    refused(tmp_path, pair, message, heads)


def test_the_test_set_lacks_it(tmp_path):
    pair = [write_features(tmp_path / name, maps=maps) for name, maps in (("a", ("cls", "centre")), ("b", ("cls",)))]
    message = r"b has no array 'attention/centre/block1/view0'; it has: attention/cls/block1/view0"
    refused(tmp_path, pair, message, HeadPlan(HeadSpec("central-attention"), RECIPE))


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        (HeadPlan(HeadSpec(final_norm=True), RECIPE), {}, "has no final norm to apply"),
        *((PLAN, {"views": views}, rf"views is {views}, expected 1 to 1") for views in (0, 2, -1)),
        ({}, {}, "heads is empty"),
        *(({name: PLAN}, {}, "expected a name for a folder") for name in ("a/b", "..", "", ".")),
        (WILD, {}, r"base_lr 1e\+60, weight_decay 0, seed 0\) diverged in epoch 1"),
        (PLAN, {"subset": np.ones(128, bool)}, r"a subset is bool \(128,\)"),
        (PLAN, {"subset": [3, 128]}, "rows 3 to 128, but .*train has 128 images"),
        (PLAN, {"subset": [-1, 3]}, "rows -1 to 3"),
        (PLAN, {"subset": []}, "train has no valid, labelled image among the rows of the subset"),
        (PLAN, {"subset": [3]}, "1 image to train on, expected 2 or more"),
        *(
            (OWN_ORDER, {"subset": draw}, message)
            for draw, message in (
                (lambda seed, rows: rows[: 10 + seed], "seeds draw 10 or 13 images, expected as many each"),
                (lambda seed, rows: rows[:0], "subset draws no rows"),
                (lambda seed, rows: rows[:9] + 128, "such that are not among those it is given"),
            )
        ),
        (PLAN, {"subset": lambda seed, rows: rows[:9]}, "order of out is 'shared', expected 'own'"),
    ],
)
def test_what_cannot_be(heads, options, message, sets, tmp_path):
    refused(tmp_path, sets, message, heads, **options)


def test_the_test_set_is_read_at_the_block_of_the_training_set(tmp_path):
    """Not at its own deepest one, which may be another."""
    deep, shallow = write_features(tmp_path / "deep", 32, blocks=(0, 1)), write_features(tmp_path / "shallow", 32, blocks=(0,))
    refused(tmp_path, (deep, shallow), r"shallow has no array '(patch|cls|average)/block1/view0'")


class TestWhatOthersMade:
    """A head takes the place of what its run found in the folder, and of nothing else."""

    def test_of_two_heads_that_train_at_once_the_second_stays_beside(self, sets, tmp_path):
        out, others = tmp_path / "out", HeadPlan(HeadSpec("cls"), RECIPE)
        begun = []

        def meanwhile(_):
            if not begun:
                begun.append(probe(*sets, out, others))
                begun.append(contents(out))

        with pytest.raises(StoreError, match=r"keeps it; that of this run is in .*\.unfinished/out\."):
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
        probe(*sets, tmp_path / "out", HeadPlan(HeadSpec("cls"), RECIPE))
        assert list((tmp_path / ".unfinished/out").iterdir()) == [begun]
        probe(*sets, tmp_path / "out", PLAN)
        assert not (tmp_path / ".unfinished").exists()

    @pytest.mark.parametrize("content", ['{"loss": 0.1}', "loss: 0.1", '["mine"]'])
    def test_metrics_of_another_program_stay(self, content, sets, tmp_path):
        (tmp_path / "metrics.json").write_text(content)
        trained = []
        with pytest.raises(BeyondClsError, match=r"has no description\.json next to it, so it is not replaced"):
            probe(*sets, tmp_path, PLAN, progress=trained.append)
        assert (contents(tmp_path), trained) == ({"metrics.json": content.encode()}, [])
