import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from probe.run import probe
from probe.saved import load_probe
from probe.train import Recipe
from store import BeyondClsError, StoreError
from tests.features import write_features

RECIPE = Recipe(epochs=3, batch_size=32, warmup_epochs=1)


@pytest.fixture
def sets(tmp_path):
    return write_features(tmp_path / "train", 128), write_features(tmp_path / "test", 64, seed=1, invalid=(5, 6))


def test_writes_probes_metrics_and_curves(sets, tmp_path):
    metrics = probe(*sets, tmp_path / "out", recipe=RECIPE, seeds=(0, 3))
    written = sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file())
    trained = ["seed0.json", "seed0.safetensors", "seed3.json", "seed3.safetensors", "weights.npy"]
    assert written == ["curves.csv", "metrics.json", *(f"trained/{name}" for name in trained)]
    assert json.loads((tmp_path / "out/metrics.json").read_text()) == metrics
    values = metrics["top1"]["values"]
    assert metrics["top1"]["mean"] == pytest.approx(np.mean(values))
    assert metrics["top1"]["std"] == pytest.approx(np.std(values, ddof=1))
    assert (metrics["n_training"], metrics["n_test"], metrics["n_tokens"], metrics["n_classes"]) == (128, 62, 9, 3)
    rows = list(csv.DictReader((tmp_path / "out/curves.csv").open()))
    assert [(r["seed"], r["epoch"]) for r in rows] == [(s, e) for s in "03" for e in "123"]
    assert float(rows[2]["top1"]) == values[0]
    weights = np.load(tmp_path / "out/trained/weights.npy")
    assert weights.shape == (62, 9)
    np.testing.assert_allclose(weights.sum(1), 1, atol=0.01)


def test_a_saved_probe_gives_the_same_logits(sets, tmp_path):
    metrics = probe(
        *sets, tmp_path / "out", aggregator="abmilp", options={"depth": 2, "activation": "tanh"}, recipe=RECIPE, seeds=(0,)
    )
    head = load_probe(tmp_path / "out/trained/seed0")
    assert not head.training
    rows = np.flatnonzero(sets[1].valid)
    patch = torch.from_numpy(sets[1].tokens("patch").rows(rows)).float()
    logits, weights = head({"patch": patch})
    labels = torch.from_numpy(sets[1].labels[rows])
    assert 100 * (logits.argmax(-1) == labels).double().mean().item() == pytest.approx(metrics["top1"]["mean"])
    np.testing.assert_allclose(weights.detach().numpy(), np.load(tmp_path / "out/trained/weights.npy"), atol=1e-3)


def test_probing_imports_neither_timm_nor_the_first_stage(sets, tmp_path):
    script = f"""
import sys
from pipelines.cli import app
app(["probe", "--features", {str(sets[0].path)!r}, "--test", {str(sets[1].path)!r}, "--out", {str(tmp_path / "out")!r},
     "--head", "cls", "--epochs", "2", "--warmup-epochs", "0", "--seeds", "0"], standalone_mode=False)
loaded = [m for m in sys.modules if m.split(".")[0] in ("timm", "torchvision", "webdataset", "extract")]
print("LOADED", [m for m in loaded if "." not in m])
"""
    root = Path(__file__).resolve().parents[2]
    shown = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    loaded = shown.stdout.rsplit("LOADED", 1)[1]
    assert "timm" not in loaded
    assert "extract" not in loaded
    assert (tmp_path / "out/metrics.json").exists()


class TestBadInput:
    def test_class_counts_differ(self, sets, tmp_path):
        other = write_features(tmp_path / "four", 64, n_classes=4, seed=2)
        with pytest.raises(StoreError, match=r"train has 3 classes, .*four has 4; use splits of one data set"):
            probe(sets[0], other, tmp_path / "out", recipe=RECIPE)

    def test_class_names_differ(self, tmp_path):
        one = write_features(tmp_path / "one", classes=("cat", "dog", "owl"))
        other = write_features(tmp_path / "other", classes=("cat", "owl", "dog"))
        with pytest.raises(StoreError, match=r"class 'dog' of .*one is 'owl' in .*other"):
            probe(one, other, tmp_path / "out", recipe=RECIPE)

    def test_sets_of_two_encoders(self, sets, tmp_path):
        other = write_features(tmp_path / "other", 64, weights="v")
        with pytest.raises(StoreError, match=r"encoder-w.*encoder-v.*two encoders or extractions: weights differ"):
            probe(sets[0], other, tmp_path / "out", recipe=RECIPE)

    def test_no_cls_tokens(self, tmp_path):
        pair = [write_features(tmp_path / name, cls=False) for name in ("a", "b")]
        with pytest.raises(StoreError, match=r"has no \[cls\] tokens .*patch.*choose an aggregator that reads something else"):
            probe(*pair, tmp_path / "out", aggregator="cls", recipe=RECIPE)

    def test_block_that_is_not_stored(self, sets, tmp_path):
        with pytest.raises(StoreError, match="no array 'patch/block0/view0'; it has: patch/block1/view0"):
            probe(*sets, tmp_path / "out", block=0, recipe=RECIPE)

    def test_no_valid_image(self, sets, tmp_path):
        empty = write_features(tmp_path / "empty", 64, invalid=range(64))
        with pytest.raises(StoreError, match="empty has no valid, labelled image"):
            probe(sets[0], empty, tmp_path / "out", recipe=RECIPE)

    def test_unknown_aggregator(self, sets, tmp_path):
        with pytest.raises(BeyondClsError, match="unknown aggregator 'avrage'; did you mean 'average'"):
            probe(*sets, tmp_path / "out", aggregator="avrage", recipe=RECIPE)

    def test_no_seed(self, sets, tmp_path):
        with pytest.raises(BeyondClsError, match="no seed was given"):
            probe(*sets, tmp_path / "out", recipe=RECIPE, seeds=())


class TestBadProbe:
    @pytest.fixture
    def saved(self, sets, tmp_path):
        probe(*sets, tmp_path / "out", recipe=RECIPE, seeds=(0,))
        return tmp_path / "out/trained/seed0"

    def test_missing(self, tmp_path):
        with pytest.raises(BeyondClsError, match=r"there is no probe .*nowhere"):
            load_probe(tmp_path / "nowhere")

    def test_cut_parameters(self, saved):
        file = saved.with_suffix(".safetensors")
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(BeyondClsError, match="no readable probe"):
            load_probe(saved)

    def test_parameters_of_another_head(self, saved):
        state = load_file(saved.with_suffix(".safetensors"))
        state["classifier.weight"] = state["classifier.weight"][:, :5].contiguous()
        save_file(state, saved.with_suffix(".safetensors"))
        with pytest.raises(BeyondClsError, match="no readable probe"):
            load_probe(saved)

    def test_another_format(self, saved):
        described = json.loads(saved.with_suffix(".json").read_text())
        saved.with_suffix(".json").write_text(json.dumps({**described, "format_version": 99}))
        with pytest.raises(BeyondClsError, match="format version 99, expected 1"):
            load_probe(saved)
