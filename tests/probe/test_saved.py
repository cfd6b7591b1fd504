"""Probes on disk: what comes back, what is refused, and that loading runs nobody's code."""

import json
import os

import pytest
import torch

from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from probe.saved import load_probe, save_probe
from store import BeyondClsError
from tests.features import write_features

OWN = """
import pathlib
import torch
from probe.aggregators import Aggregator, Pooled

with (pathlib.Path(__file__).parent / "ran").open("a") as log:
    log.write("x")


class Mine(Aggregator):
    reads = ("patch",)

    def __init__(self, dim, power=1):
        super().__init__(dim)
        self.score, self.power = torch.nn.Linear(dim, 1), power

    def forward(self, features):
        weights = (self.power * self.score(features["patch"]).squeeze(-1)).softmax(-1)
        return Pooled((weights[..., None] * features["patch"]).sum(1), weights)
"""


@pytest.fixture
def saved(tmp_path):
    head = HeadSpec(options={"depth": 2}).build(8, 9, 3, seed=3).eval()
    save_probe(tmp_path / "probe.v1", head, HeadSpec(options={"depth": 2}), 9, {"seed": 3, "result": {"top1": 50.0}})
    return tmp_path / "probe.v1"


def test_one_that_does_not_say_where_its_classifier_started(saved):
    description = saved.with_name("probe.v1.json")
    described = json.loads(description.read_text())
    assert described.pop("init") == "normal"
    description.write_text(json.dumps(described))
    made = HeadSpec(options={"depth": 2}).build(8, 9, 3, seed=3)
    assert torch.equal(load_probe(saved).classifier.weight, made.classifier.weight)


def edit(stem, **changes):
    file = stem.with_name(stem.name + ".json")
    described = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in described.items() if value != "gone"}))


class TestBadProbe:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"aggregator": "abmlip"}, "unknown aggregator 'abmlip'; did you mean 'abmilp'"),
            ({"aggregator": ["abmilp"]}, "not a readable probe"),
            ({"aggregator": None}, "not a readable probe"),
            ({"aggregator": "average"}, "unknown option of aggregator 'average' 'depth'|not a readable probe"),
            ({"options": {"depth": 3}}, "not a readable probe"),
            ({"options": {"dept": 2}}, "unknown option of aggregator 'abmilp' 'dept'; did you mean 'depth'"),
            ({"options": 3}, "not a readable probe"),
            ({"normalisation": "none"}, "not a readable probe"),
            ({"final_norm": True}, "not a readable probe"),
            ({"dim": -1}, "not a readable probe"),
            ({"n_patches": "gone"}, "not a readable probe .*'n_patches'"),
        ],
    )
    def test_descriptions_that_cannot_be(self, changes, message, saved):
        edit(saved, **changes)
        with pytest.raises(BeyondClsError, match=message):
            load_probe(saved)

    @pytest.mark.parametrize(
        "changes",
        [
            {"dim": 2**40},
            {"n_classes": 2**28},
            {"aggregator": "abmilp", "options": {"depth": 10**9}},
            {"aggregator": "abmilp", "options": {"position": "sin-cos"}, "n_patches": 2**40},
            {"aggregator": "ap", "options": {"heads": 2**40}, "dim": 2**40 + 1},
        ],
        ids=str,
    )
    def test_sizes_that_its_parameters_cannot_have(self, changes, saved, monkeypatch):
        """None is made: memory for it would be taken before the parameters are looked at."""
        built = HeadSpec.build
        monkeypatch.setattr(HeadSpec, "build", lambda *args: built(*args) if torch.empty(0).is_meta else pytest.fail("is made"))
        edit(saved, **changes)
        with pytest.raises(BeyondClsError, match=r"\(ValueError: a (larger model|width of \d+) is described"):
            load_probe(saved)


class TestCustomAggregator:
    @pytest.fixture
    def trained(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        file = tmp_path / "theirs/mine.py"
        file.write_text(OWN)
        sets = write_features(tmp_path / "train"), write_features(tmp_path / "test", 64, seed=1)
        plan = HeadPlan(HeadSpec(f"{file}:Mine", {"power": 2}), Recipe(epochs=2, batch_size=32, warmup_epochs=0), seeds=(0, 1))
        metrics = probe(*sets, tmp_path / "out", plan)["out"]
        assert (file.parent / "ran").read_text() == "x"  # once
        return tmp_path / "out/trained/seed0", file, sets[1], metrics

    def test_is_not_run_unless_it_is_named(self, trained):
        stem, file, _, _ = trained
        (file.parent / "ran").unlink()
        file.write_text(OWN + "\n# changed\n")
        with pytest.raises(BeyondClsError, match=r"custom aggregator, '.*mine.py:Mine', which loading does not run"):
            load_probe(stem)
        assert not (file.parent / "ran").exists()
        load_probe(stem, own=f"{file}:Mine")
        assert (file.parent / "ran").read_text() == "x"

    def test_it_may_have_moved_but_not_become_another(self, trained, tmp_path):
        stem, file, _, _ = trained
        moved = file.rename(tmp_path / "moved.py")
        load_probe(stem, own=f"{moved}:Mine")
        with pytest.raises(BeyondClsError, match=r"own is 'abmilp', expected FILE.py:CLASS, as the aggregator of .*seed0"):
            load_probe(stem, own="abmilp")
        before = moved.stat()
        moved.write_text(OWN.replace("self.score, ", "self.other, "))
        os.utime(moved, ns=(before.st_atime_ns, before.st_mtime_ns))  # an edit that neither its time nor its length tells
        with pytest.raises(BeyondClsError, match="not a readable probe"):
            load_probe(stem, own=f"{moved}:Mine")
        with pytest.raises(BeyondClsError, match="there is no file"):
            load_probe(stem, own=f"{file}:Mine")

    def test_the_registry_is_not_asked_for_a_file(self, saved):
        """A probe of a known aggregator that was edited to name a file does not run that file either."""
        evil = saved.with_name("evil.py")
        evil.write_text(OWN)
        edit(saved, aggregator=f"{evil}:Mine", options={})
        with pytest.raises(BeyondClsError, match="has a custom aggregator"):
            load_probe(saved)
        assert not (saved.parent / "ran").exists()
