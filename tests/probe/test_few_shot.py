"""Accuracy from a few images of each class: against least squares that are solved here, the draws, and bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from beyondcls import read_rows
from pipelines.few_shot import main
from probe.few_shot import few_shot
from probe.subsets import groups_of, k_shot
from store import BeyondClsError, FeatureStore
from tests.features import write_features


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureStore, FeatureStore]:
    folder = tmp_path_factory.mktemp("sets")
    options = {"vectors": (0, 1), "pooled": True}
    training = write_features(folder / "train", n=90, invalid=(3,), **options)  # type: ignore[arg-type]
    return training, write_features(folder / "test", n=60, seed=1, **options)  # type: ignore[arg-type]


def test_least_squares_of_each_draw(sets):
    """By the formula of big_vision's code, whose standard deviation has 1e-5 added."""
    training, test = sets
    (measured,) = [one for one in few_shot(training, test, ["cls"], shots=(5,), draws=3) if one["block"] == 1]
    x, z = (store.tokens("cls").rows(np.arange(len(store))).astype(float) for store in sets)
    correct = []
    for seed in range(3):
        rows = k_shot(training.labels, 5, seed, np.flatnonzero(training.labelled))
        mean, std = x[rows].mean(0), x[rows].std(0) + 1e-5
        learnt, tested = (np.pad((v - mean) / std, ((0, 0), (0, 1)), constant_values=100) for v in (x[rows], z))
        model = Ridge(alpha=1024, fit_intercept=False).fit(learnt, 2.0 * (training.labels[rows][:, None] == np.arange(3)) - 1)
        correct.append(model.predict(tested).argmax(1) == test.labels)
    expected = [100 * one.mean() for one in correct]
    assert measured["top1_5shot"]["values"] == pytest.approx(expected)
    assert np.std(expected) > 0
    groups = groups_of(len(test))
    left = [100 * np.mean(correct, 0)[groups != group].mean() for group in range(20)]
    assert measured["top1_5shot"]["without"] == pytest.approx(left)


@pytest.mark.parametrize("classifier", ["logistic", "nearest"])
def test_more_images_tell_more(sets, classifier):
    measured = list(few_shot(*sets, ["cls", "average", "pooled"], shots=(1, 10), classifier=classifier))
    assert len(measured) == 5
    one, ten = (np.mean([of_vector[f"top1_{k}shot"]["mean"] for of_vector in measured]) for k in (1, 10))
    assert ten > one + 3


def test_by_default_as_many_as_every_class_has(sets, tmp_path):
    fewer = write_features(tmp_path / "few", n=90, labels=np.repeat([0, 1, 2], [40, 43, 7]), vectors=(0, 1), pooled=True)
    (measured,) = few_shot(fewer, sets[1], ["pooled"])
    assert [name for name in measured if name.startswith("top1")] == ["top1_1shot", "top1_2shot", "top1_5shot"]


def test_classes_are_what_they_are_called(sets, tmp_path):
    options = {"vectors": (0, 1), "pooled": True, "n": 60, "seed": 1}
    swapped = write_features(tmp_path / "swapped", classes=["2", "0", "1"], labels=(np.arange(60) + 1) % 3, **options)
    named = write_features(tmp_path / "named", classes=["0", "1", "2"], vectors=(0, 1), pooled=True, n=90)
    same = write_features(tmp_path / "same", classes=["0", "1", "2"], **options)
    found = [next(few_shot(named, test, ["cls"], shots=(5,)))["top1_5shot"]["values"] for test in (same, swapped)]
    assert found[0] == found[1]


def test_the_command(sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "few_shot/data/encoder"
    main(sets[0].where, sets[1].where, out, shots="1,5", draws=2, vector=["cls", "average"])
    described, shown = (json.loads((out / name).read_text()) for name in ("description.json", "metrics.json"))
    assert [(one["vector"], one["block"]) for one in described["vectors"]] == [
        (v, b) for v in ("cls", "average") for b in (0, 1)
    ]
    assert shown["cls/block1"]["top1_5shot"] == described["vectors"][1]["top1_5shot"]["mean"]
    assert "cls/block1: 1shot" in capsys.readouterr().out
    rows = read_rows(tmp_path).query("kind == 'few_shot' and head == 'cls' and block == 1 and metric == 'top1_5shot'")
    assert rows["seed"].tolist() == [0, 1]
    assert rows["value"].tolist() == described["vectors"][1]["top1_5shot"]["values"]
    assert set(rows["n"]) == {60}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shots": "1,x"}, "--shots is '1,x', expected"),
        ({"shots": "40"}, "class 0 has 29 images, expected 40 or more"),
        ({"draws": 0}, "draws is 0"),
        ({"vector": ["clss"]}, "clss.*cls"),
        ({"classifier": "lrs"}, "lrs.*lsr"),
    ],
)
def test_what_cannot_be(sets, tmp_path, options, message):
    with pytest.raises(BeyondClsError, match=message):
        main(sets[0].where, sets[1].where, tmp_path / "out", **options)
    assert not (tmp_path / "out/metrics.json").exists()


def test_sets_that_do_not_go_together(sets, tmp_path):
    other = write_features(tmp_path / "other", weights="x", vectors=(0, 1))
    with pytest.raises(BeyondClsError, match="encoder"):
        next(few_shot(sets[0], other, ["cls"]))
    several = [write_features(tmp_path / name, multilabel=True) for name in ("several", "test")]
    with pytest.raises(BeyondClsError, match="several an image"):
        next(few_shot(*several, ["cls"]))
    with pytest.raises(BeyondClsError, match="no vector"):
        next(few_shot(sets[0], write_features(tmp_path / "bare", vectors=(), cls=False), ["pooled"]))
