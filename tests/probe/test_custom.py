"""Aggregators in a user's own file: what can be wrong with them is said before anything trains, and loading runs none."""

import os
import re

import numpy as np
import pytest
import torch

from probe.aggregators import make_aggregator
from probe.aggregators.custom import custom_aggregator
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from probe.saved import load_probe
from store import BeyondClsError
from tests.features import write_features

HEAD = "import torch\nfrom probe.aggregators import AbMILP, Aggregator, Pooled\n\n\n"
MINE = f"""{HEAD}class Mine(Aggregator):
    reads = ("patch",)

    def __init__(self, dim, n_patches=None):
        super().__init__(dim)
        self.score = torch.nn.Linear(dim, 1)

    def forward(self, features):
        patch = features["patch"]
        weights = self.score(patch).squeeze(-1).softmax(-1)
        return Pooled(torch.bmm(weights[:, None], patch).squeeze(1), weights)
"""
WITHOUT_PARAMETERS = MINE.replace("        self.score = torch.nn.Linear(dim, 1)\n", "")
RECIPE = Recipe(epochs=3, batch_size=32, warmup_epochs=0)
IF_LARGE = "if self.score.weight.sum() > 1e6:\n            raise ValueError\n        patch = "


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return write_features(folder / "train"), write_features(folder / "test", 64, seed=1)


@pytest.fixture
def run(sets, tmp_path):
    def run(text, seeds=(0,), **options):
        file = tmp_path / "mine.py"
        file.write_text(text)
        return probe(*sets, tmp_path / "out", HeadPlan(HeadSpec(f"{file}:Mine", options), RECIPE, seeds))["out"]

    return run


def test_trains_as_one_of_the_registry(run, sets, tmp_path):
    mine = run(MINE, seeds=(0, 1))
    theirs = probe(*sets, tmp_path / "abmilp", HeadPlan(HeadSpec("abmilp"), RECIPE, (0, 1)))["abmilp"]
    assert mine["n_parameters"] == theirs["n_parameters"]
    assert mine["top1"]["values"] == pytest.approx(theirs["top1"]["values"], abs=2)
    assert mine["entropy"]["mean"] == pytest.approx(theirs["entropy"]["mean"], abs=1e-3)
    weights = [np.load(tmp_path / name / "trained/weights.npy") for name in ("out", "abmilp")]
    np.testing.assert_allclose(*weights, atol=1e-3)


def test_without_parameters_it_is_pooled_and_what_cannot_be_counted_is_said(run, tmp_path):
    metrics = run(WITHOUT_PARAMETERS.replace("self.score(patch).squeeze(-1)", "(patch.sum(-1) * float(patch.sum() > 0))"))
    assert metrics["n_parameters"] == 3 * 8 + 3
    assert np.load(tmp_path / "out/trained/weights.npy").shape == (64, 9)
    assert (metrics["cost"]["parameters"], metrics["cost"]["flops_per_image"]) == (0, None)
    assert any("flops_per_image is unknown" in note for note in metrics["notes"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # The file.
        (HEAD, "import nothing_like_this\n", "mine.py cannot be imported in line 1 (ModuleNotFoundError: "),
        (HEAD, "import sys\nsys.exit(3)\n", "mine.py cannot be imported in line 2 (SystemExit: 3)"),
        # The class.
        ("class Mine(Aggregator)", "class Mien(Aggregator)", "mine.py 'Mine'; did you mean 'Mien'"),
        ("(Aggregator):", "(torch.nn.Module):", "mine.py is not an aggregator; derive it"),
        ("def __init__(self, dim, n_patches=None)", "def __init__(self)", "takes 1 positional argument"),
        ("n_patches=None", "width", "missing 1 required positional argument: 'width'"),
        ("def forward", "def ahead", "Can't instantiate"),
        ("super().__init__(dim)", "pass", "mine.py:Mine cannot be made in line 10 (AttributeError: "),
        ('("patch",)', '("patch")', "mine.py:Mine is 'patch', expected kinds of features"),
        ('("patch",)', "(1,)", "mine.py:Mine is (1,), expected kinds of features"),
        ('("patch",)', '("patches",)', "has no 'patches' "),
        ('("patch",)', '("patch/block7",)', "no array 'patch/block7/view0'; it has: patch/block1/view0"),
        # What it returns.
        ("return Pooled(", "return list((", "Mine returns list, expected vectors [4, 8]"),
        ("1), weights)", "1), weights).vector", "Mine returns [4, 8], expected vectors [4, 8]"),
        ("patch).squeeze(1)", "patch)", "Mine returns vectors [4, 1, 8], expected [4, 8]"),
        ("__init__(dim)", "__init__(dim, 5)", "Mine returns vectors [4, 8], expected [4, 5]"),
        ("squeeze(1), weights)", "squeeze(1), weights[0])", "Mine returns weights [9], expected [4, 9]"),
        ("squeeze(1), weights)", "squeeze(1), 3)", "Mine returns weights int, expected [4, 9]"),
        (".softmax(-1)", ".sigmoid()", "expected 1 for each image"),
        # How it fails.
        ('features["patch"]', 'features["cls"]', "Mine fails on patch in line 13 (KeyError: 'cls')"),
        ("weights[:, None]", "weights", "Mine fails on patch in line 15 (RuntimeError: "),
        ("patch = ", IF_LARGE, "not for several members at once (define pool_members, too) in line 13 "),
    ],
)
def test_what_can_be_wrong(old, new, message, run, tmp_path):
    assert old in MINE
    changed = MINE.replace(old, new)
    if "list((" in new:
        changed = changed.replace("squeeze(1), weights)", "squeeze(1), weights))")
    with pytest.raises(BeyondClsError, match=re.escape(message)):
        run(changed)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"), [({"depth": 2}, "Mine' 'depth'"), ({"top_k": 2}, "top_k is 2, but .*Mine' has no weights")]
)
def test_options_are_checked(options, message, run):
    with pytest.raises(BeyondClsError, match=message):
        run(MINE, **options)


def test_the_file_is_run_once_until_it_changes(tmp_path, monkeypatch):
    file, log = tmp_path / "mine.py", tmp_path / "log"
    file.write_text(f"open({str(log)!r}, 'a').write('x')\n" + MINE)
    one = custom_aggregator(f"{file}:Mine")
    assert custom_aggregator(f"{file}:Mine") is one
    monkeypatch.chdir(tmp_path)
    assert custom_aggregator("mine.py:Mine") is one
    assert log.read_text() == "x"
    file.write_text(MINE.replace("Linear(dim, 1)", "Linear(dim, 1, bias=False)"))
    assert len(list(make_aggregator("mine.py:Mine", 8).parameters())) == 1
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "mine.py").write_text(HEAD + "class Mine(AbMILP):\n    pass\n")
    monkeypatch.chdir(other)  # the same name, another file
    assert make_aggregator("mine.py:Mine", 8).depth == 1


def test_trying_changes_nothing(run):
    """Dropout draws random numbers; neither the caller's nor the training's are touched by the try."""
    text = MINE.replace("self.score(patch)", "torch.nn.functional.dropout(self.score(patch), 0.5, self.training)")
    before = torch.get_rng_state()
    metrics = run(text)
    assert torch.equal(before, torch.get_rng_state())
    assert metrics["top1"] == run(text)["top1"]


def test_loading_runs_it_if_it_is_named_alone_wherever_it_is(run, tmp_path):
    file, ran, stem = tmp_path / "mine.py", tmp_path / "ran", tmp_path / "out/trained/seed0"
    text = f"open({str(ran)!r}, 'a').write('x')\n{MINE}"
    run(text, seeds=(0, 1))
    assert ran.read_text() == "x"  # once
    ran.unlink()
    file.write_text(text + "\n# changed\n")
    with pytest.raises(BeyondClsError, match=r"custom aggregator, '.*mine.py:Mine', which loading does not run"):
        load_probe(stem)
    assert not ran.exists()
    load_probe(stem, own=f"{file}:Mine")
    assert ran.read_text() == "x"
    moved = file.rename(tmp_path / "moved.py")
    load_probe(stem, own=f"{moved}:Mine")
    for own, message in (("abmilp", "own is 'abmilp', expected FILE.py:CLASS"), (f"{file}:Mine", "there is no file")):
        with pytest.raises(BeyondClsError, match=message):
            load_probe(stem, own=own)
    before = moved.stat()
    moved.write_text(moved.read_text().replace("self.score = ", "self.other = "))
    os.utime(moved, ns=(before.st_atime_ns, before.st_mtime_ns))  # an edit that neither its time nor its length tells
    with pytest.raises(BeyondClsError, match="not a readable probe"):
        load_probe(stem, own=f"{moved}:Mine")
