"""Trained heads on other test sets: what is measured, compared and refused, and what results say."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from sklearn.metrics import brier_score_loss, log_loss

import beyondcls as front_door
from probe.calibration import bins_of_width, calibration_error, fit_temperature
from probe.closed import make_closed
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import probe
from probe.saved import load_probe
from probe.score import score
from probe.subsets import percentage
from probe.trained import load_trained
from store import BeyondClsError, FeatureStore
from tests.features import write_features

NAMES = ("ant", "bee", "cow")
RECIPE = Recipe(epochs=8, batch_size=32, base_lr=0.5, warmup_epochs=2)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FeatureStore]:
    folder = tmp_path_factory.mktemp("features")
    signals = {"train": 4.0, "val": 4.0, "fog-1": 2.0, "fog-2": 1.0}
    return {
        name: write_features(folder / name, n=200, seed=seed, signal=signal, classes=NAMES)
        for seed, (name, signal) in enumerate(signals.items())
    }


@pytest.fixture(scope="module")
def probes(sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AbMILP and average on 60 % of the images, each seed its own; [cls] and ridge, which keeps no weights, on all."""
    folder = tmp_path_factory.mktemp("probes") / "mae"
    rows = lambda seed, rows: percentage(sets["train"].labels, 60, seed, rows)  # noqa: E731
    plans = {name: HeadPlan(HeadSpec(name), replace(RECIPE, order="own"), seeds=(0, 1)) for name in ("abmilp", "average")}
    probe(sets["train"], sets["val"], folder, plans, subset=rows, notes={"subset": {"percent": 60, "seed": "own"}})
    plans = {"cls": HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0,))}
    plans["ridge"] = HeadPlan(HeadSpec("cls"), closed=make_closed("ridge"))
    probe(sets["train"], sets["val"], folder, plans)
    return folder


def written(folder: Path, name: str, head: str = "abmilp") -> dict[str, Any]:
    return read_result(folder / name / "mae" / head / "metrics.json")


@torch.no_grad()
def logits_of(probes: Path, store: FeatureStore, seed: int) -> torch.Tensor:
    """Of AbMILP."""
    patch = torch.from_numpy(store.tokens("patch").all()).float()
    return load_probe(probes / f"abmilp/trained/seed{seed}")({"patch": patch})[0]


@pytest.fixture(scope="module")
def scores(sets, probes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scores")
    heads = [load_trained(probes / name) for name in ("abmilp", "average")]
    score(heads, {name: sets[name] for name in ("val", "fog-1", "fog-2")}, out, held_out=sets["train"])
    return out


def test_vectors_are_read_where_all_sets_have_them(tmp_path: Path) -> None:
    """As in training; a set may have the averages of other blocks without their tokens."""
    train, val = (write_features(tmp_path / name, n=120, seed=seed, vectors=(0, 1)) for seed, name in enumerate(("t", "v")))
    ap = HeadSpec("ap", {"blocks": [0, 1], "norm": True, "heads": 2})
    plans = {name: HeadPlan(spec, RECIPE, (0,)) for name, spec in {"average": HeadSpec("average"), "ap": ap}.items()}
    trained = probe(train, val, tmp_path / "probes/mae", plans)
    heads = [load_trained(tmp_path / "probes/mae" / name) for name in plans]
    scored = score(heads, {"val": val}, tmp_path / "scores")
    for name in plans:
        assert scored[tmp_path / "scores/val/mae" / name]["top1"]["values"] == trained[name]["top1"]["values"]
    assert heads[0].reading([val]).reads == ("average",)
    assert heads[0].reading([val, write_features(tmp_path / "bare", n=60)]).reads == ("patch",)


def test_accuracy_is_that_of_the_head_and_the_gap_that_to_the_first_set(sets, probes: Path, scores: Path) -> None:
    trained, val, fog = read_result(probes / "abmilp/metrics.json"), written(scores, "val"), written(scores, "fog-2")
    for measure in ("top1", "top5", "balanced_accuracy"):
        assert val[measure]["values"] == pytest.approx(trained[measure]["values"])
    assert val["nll"]["values"] == pytest.approx(trained["nll"]["values"])
    assert val["test_images"] == trained["test_images"]
    for seed in (0, 1):
        right = (logits_of(probes, sets["fog-2"], seed).argmax(1).numpy() == sets["fog-2"].labels).mean()
        assert fog["top1"]["values"][seed] == pytest.approx(100 * right)
        assert fog["gap"]["values"][seed] == pytest.approx(100 * right - val["top1"]["values"][seed])
    assert fog["gap"]["mean"] < -10
    assert "gap" not in val
    assert fog["features"] == {"training": sets["train"].spec.key, "test": sets["fog-2"].spec.key}
    with (
        np.load(scores / "fog-2/mae/abmilp/trained/correct.npz") as arrays,
        np.load(probes / "abmilp/trained/correct.npz") as of_head,
    ):
        np.testing.assert_array_equal(arrays["reference"], of_head["correct"])
        assert 100 * arrays["correct"].mean() == pytest.approx(fog["top1"]["mean"])


def test_calibration_at_the_temperature_of_images_that_no_seed_has_seen(sets, probes: Path, scores: Path) -> None:
    train, fog, said = sets["train"], sets["fog-2"], written(scores, "fog-2")
    for seed in (0, 1):
        unseen = np.setdiff1d(np.arange(200), percentage(train.labels, 60, seed, np.arange(200)))
        of_unseen = logits_of(probes, train, seed)[torch.from_numpy(unseen)]
        t = fit_temperature(of_unseen, torch.from_numpy(train.labels[unseen]))
        assert said["temperature"]["values"][seed] == pytest.approx(t, rel=1e-4)
        for prefix, divisor in (("", 1.0), ("tempered_", t)):
            p = (logits_of(probes, fog, seed).double() / divisor).softmax(-1)
            stated, predicted = (values.numpy() for values in p.max(-1))
            ece = calibration_error(stated, predicted == fog.labels, bins_of_width(stated))
            assert said[f"{prefix}nll"]["values"][seed] == pytest.approx(log_loss(fog.labels, p.numpy()), rel=1e-4)
            assert said[f"{prefix}ece"]["values"][seed] == pytest.approx(ece, abs=0.01)
            brier = brier_score_loss(fog.labels, p.numpy(), scale_by_half=False)
            assert said[f"{prefix}brier"]["values"][seed] == pytest.approx(brier, rel=1e-4)
    assert len(set(said["temperature"]["values"])) == 2
    assert sum(said["reliability"]["n"]) == sum(said["tempered_reliability"]["n"]) == 400
    assert said["scored"]["held_out"] == train.spec.key


def test_a_map_restricts_choices_there_and_in_the_first_set(sets, probes: Path, tmp_path: Path) -> None:
    labels = [(0, 2, 1)[i % 3] for i in range(90)]
    theirs = write_features(tmp_path / "theirs", n=90, seed=9, signal=3.0, classes=("fourmi", "other", "vache"), labels=labels)
    (tmp_path / "map.csv").write_text("fourmi,ant\nvache,cow\n")
    (tmp_path / "order.txt").write_text("cow\nbee\nant\n")  # of the first set, which changes nothing
    maps = {"r": tmp_path / "map.csv", "val": tmp_path / "order.txt"}
    score([load_trained(probes / "abmilp")], {"val": sets["val"], "r": theirs}, tmp_path / "out", maps)
    said, among = written(tmp_path / "out", "r"), torch.tensor([0, 2])
    assert (said["n_test"], said["scored"]["n_left_out"], said["scored"]["n_choices"]) == (60, 30, 2)
    for seed in (0, 1):
        right, digests = [], []
        for store in (theirs, sets["val"]):
            rows = np.flatnonzero(store.labels != 1)
            chosen = among[logits_of(probes, store, seed)[:, among].argmax(1)].numpy()
            right.append(100 * (chosen == store.labels)[rows].mean())
            digests.append(xxhash.xxh3_128_hexdigest("\n".join(store.ids[row] for row in rows).encode()))
        assert said["top1"]["values"][seed] == pytest.approx(right[0])
        assert said["gap"]["values"][seed] == pytest.approx(right[0] - right[1])
    assert said["scored"]["n_reference"] == len(rows)
    assert [said["test_images"], said["scored"]["reference_images"]] == digests


def test_by_command(sets, probes: Path, tmp_path: Path, beyondcls) -> None:
    (tmp_path / "two.txt").write_text("ant\nbee\n")
    of_sets = [word for name in ("val", "fog-1") for word in ("--test", f"{name}={sets[name].where}")]
    given = ("--probes", probes, *of_sets, "--map", f"fog-1={tmp_path / 'two.txt'}", "--out", tmp_path / "out")
    said = beyondcls("score", *given)
    assert f"{probes / 'ridge'} keeps no weights" in said
    assert " against val; ECE " in said
    assert written(tmp_path / "out", "fog-1", "cls")["command"].startswith("beyondcls score --probes")
    assert written(tmp_path / "out", "fog-1")["n_test"] == 134
    one = (*of_sets, "--out", tmp_path / "one", "--held-out", sets["train"].where)
    assert " at temperature " in beyondcls("score", "--probes", probes / "average", *one)
    assert [place.name for place in (tmp_path / "one/val/mae").iterdir()] == ["average"]


def test_a_set_to_compare_with_that_is_not_written(sets, probes: Path, scores: Path, tmp_path: Path, beyondcls) -> None:
    """As in the pipeline, where each set is a stage; and from Python."""
    given = ("--probes", probes / "abmilp", "--against", f"val={sets['val'].where}", "--out", tmp_path)
    beyondcls("score", *given, "--test", f"fog-2={sets['fog-2'].where}")
    assert [place.name for place in tmp_path.iterdir()] == ["fog-2"]
    one, same = written(tmp_path, "fog-2"), written(scores, "fog-2")
    assert (one["gap"], one["scored"]["first"], one["ece"]) == (same["gap"], "val", same["ece"])
    results = front_door.score([str(probes / "abmilp")], {name: sets[name] for name in ("val", "fog-1")}, str(tmp_path))
    assert [*results] == [tmp_path / name / "mae/abmilp" for name in ("val", "fog-1")]
    assert results[tmp_path / "fog-1/mae/abmilp"]["gap"] == written(scores, "fog-1")["gap"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--test", "val"), "--test is 'val', expected NAME=PLACE"),
        (("--test", "../val={val}"), "--test is '../val="),
        (("--test", "val={val}", "--test", "val={fog-1}"), "names 'val' twice"),
        (("--test", "val={val}", "--map", "fog=map.csv"), "is of no test set, expected one of val"),
        (("--test", "val={val}", "--held-out", "{val}"), "held-out images are test set val"),
        (("--test", "val={val}", "--held-out", "{train}", "--probes", "{probes}/cls"), "all 200 images of .* none is held out"),
        (("--test", "val={val}", "--probes", "{probes}/ridge"), "ridge has no weights, expected trained/seed"),
    ],
)
def test_commands_that_cannot_be_are_refused(sets, probes: Path, tmp_path: Path, beyondcls, options, message: str) -> None:
    places = {name: store.where for name, store in sets.items()} | {"probes": probes}
    named = [text.format_map(places) for text in options]
    beside = [] if "--probes" in named else ["--probes", probes / "abmilp"]
    err = beyondcls("score", *beside, *named, "--out", tmp_path / "out", fails=True)
    assert re.search(message, err), err
    assert not (tmp_path / "out/val").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"weights": "v"}, r"abmilp was trained on .* with encoder_weights w, .*other is of .* with v, expected one encoder"),
        ({"n_tokens": 16}, r"has 16 patches an image, expected 9"),
        ({"multilabel": True}, r"several labels an image, expected one"),
        ({"labels": [0, 1, 7] * 32}, r"has label 7, but 3 classes"),
        ({"labels": [-1] * 96}, r"no valid, labelled image"),
        ({"classes": ("ant", "bee", "dog")}, r"class 'dog', which the head lacks"),
    ],
)
def test_sets_that_do_not_fit_are_refused(probes: Path, tmp_path: Path, made: dict[str, Any], message: str) -> None:
    other = write_features(tmp_path / "other", **{"classes": NAMES, **made})
    with pytest.raises(BeyondClsError, match=message):
        score([load_trained(probes / "abmilp")], {"other": other}, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/*/*"))


def test_a_map_of_no_image_and_joined_classes_of_the_first_set_are_refused(sets, probes: Path, tmp_path: Path) -> None:
    only = write_features(tmp_path / "only", classes=NAMES, labels=[0] * 96)
    (tmp_path / "cow.txt").write_text("cow")
    trained = [load_trained(probes / "average")]
    with pytest.raises(BeyondClsError, match=r"none of the 96 images of .*only is of a class that the map of a names"):
        score(trained, {"a": only}, tmp_path / "out", {"a": tmp_path / "cow.txt"})
    (tmp_path / "joined.txt").write_text("ant,ant,bee")
    with pytest.raises(BeyondClsError, match=r"joins classes of val, the first test set"):
        score(trained, {"val": sets["val"], "a": only}, tmp_path / "out", {"val": tmp_path / "joined.txt"})
    with pytest.raises(BeyondClsError, match=r"none of the 96 images"):
        score(trained, {"val": sets["val"], "a": only}, tmp_path / "new", {"a": tmp_path / "cow.txt"})
    assert not (tmp_path / "new/val").exists(), "all is checked before it is written"


def test_images_that_were_learnt_from_are_to_be_known(sets, probes: Path, tmp_path: Path) -> None:
    listed = tmp_path / "mae/listed"
    probe(sets["train"], sets["val"], listed, HeadPlan(HeadSpec("average"), RECIPE, seeds=(0,)), subset=np.arange(150))
    with pytest.raises(BeyondClsError, match=r"listed was trained on a list of images of .*train"):
        score([load_trained(listed)], {"val": sets["val"]}, tmp_path / "out", held_out=sets["train"])
    (listed / "trained/record.json").unlink()
    with pytest.raises(BeyondClsError, match=r"listed does not say which images it was trained on .*--held-out a feature set"):
        score([load_trained(listed)], {"val": sets["val"]}, tmp_path / "out", held_out=sets["train"])
    written_ = score([load_trained(listed)], {"val": sets["val"]}, tmp_path / "out", held_out=sets["fog-1"])
    assert next(iter(written_.values()))["temperature"]["mean"] > 0


def test_heads_that_cannot_be_scored(sets, probes: Path, tmp_path: Path) -> None:
    """Results of training stay; other preprocessing, and logits that are no numbers."""
    with pytest.raises(BeyondClsError, match=r"abmilp holds a head that was trained, expected a score"):
        score([load_trained(probes / "abmilp")], {probes.parent.name: sets["val"]}, probes.parent.parent)
    trained = load_trained(probes / "average")
    trained.by_seed[1].classifier.weight.data[0, 0] = torch.nan
    with pytest.raises(BeyondClsError, match=r"seed 1 of .*average gives no number for image '000000'"):
        score([trained], {"val": sets["val"]}, tmp_path / "out")
    trained.about["transform"] = {"input_size": [3, 64, 64]}
    with pytest.raises(BeyondClsError, match=r"with transform .*64, 64.*is of .*32, 32"):
        score([trained], {"val": sets["val"]}, tmp_path / "out")
