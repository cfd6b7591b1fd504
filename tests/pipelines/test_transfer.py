"""Aggregators that were trained on one set of images, applied to another."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipelines.report.collect import Folders, collect
from pipelines.report.sections.datasets import transfer_table
from pipelines.report.tables import signed
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import probe
from probe.saved import load_probe
from probe.transfer import transfer
from store import BeyondClsError, FeatureStore
from tests.features import write_features

RECIPE = Recipe(epochs=20, batch_size=32, base_lr=2.0, warmup_epochs=2)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[FeatureStore, FeatureStore]]:
    """Training and test images with a class that shows in one patch of nine: its channel is another one in b; other weights."""
    folder, pairs = tmp_path_factory.mktemp("features"), {}
    for name, of_class, weights in (("a", (0, 1, 2), "w"), ("b", (1, 2, 0), "w"), ("other", (0, 1, 2), "v")):
        options = {"labels": [of_class[i % 3] for i in range(96)], "signal": 6.0, "weights": weights}
        first, second = (write_features(folder / f"{name}-{side}", seed=10 * len(pairs) + side, **options) for side in (0, 1))
        pairs[name] = first, second
    return pairs


@pytest.fixture(scope="module")
def probes(sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of a, those of b, and on b the aggregators of a."""
    folder = tmp_path_factory.mktemp("probes")
    for data, heads in (("a", ("abmilp",)), ("b", ("abmilp", "average"))):
        probe(*sets[data], folder / data / "mae", {head: HeadPlan(HeadSpec(head), RECIPE, seeds=(0, 3)) for head in heads})
    transfer(folder / "a/mae/abmilp", *sets["b"], folder / "b/mae/abmilp-of-a")
    return folder


def metrics(folder: Path) -> dict:
    return read_result(folder / "metrics.json")


def test_weights_learned_elsewhere_beat_the_average(sets, probes: Path) -> None:
    """The aggregator is kept and the classifier is new; what is written is a probe."""
    one, other, test = probes / "a/mae/abmilp", probes / "b/mae/abmilp-of-a", sets["b"][1]
    top1 = {head: metrics(probes / "b/mae" / head)["top1"]["mean"] for head in ("average", "abmilp", "abmilp-of-a")}
    assert top1["abmilp-of-a"] > top1["average"] + 10
    assert top1["abmilp-of-a"] == pytest.approx(top1["abmilp"], abs=10)
    moved = metrics(other)
    assert (moved["seeds"], len(moved["top1"]["values"])) == ([0, 3], 2)
    assert moved["recipe"] == metrics(one)["recipe"]
    for seed in (0, 3):
        before, after = (load_file(folder / f"trained/seed{seed}.safetensors") for folder in (one, other))
        assert before.keys() == after.keys()
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert {name for name in before if name.startswith("aggregator.")} <= same
        assert "classifier.weight" not in same
    assert moved["transferred"]["training"] == sets["a"][0].spec.key
    assert (moved["features"]["test"], moved["cost"]["parameters"]) == (test.spec.key, 0)
    with torch.no_grad():
        logits, _ = load_probe(other / "trained/seed3")({"patch": torch.from_numpy(test.tokens("patch").all()).float()})
    assert 100 * (logits.argmax(1).numpy() == test.labels).mean() == pytest.approx(moved["top1"]["values"][1])


def test_vectors_of_blocks_without_tokens(tmp_path: Path) -> None:
    sets = [write_features(tmp_path / f"set-{i}", seed=i, vectors=(0, 1)) for i in range(2)]
    ap = HeadPlan(HeadSpec("ap", {"blocks": [0, 1], "heads": 2}), RECIPE, seeds=(0,))
    probe(*sets, tmp_path / "ap", ap)
    moved = transfer(tmp_path / "ap", *sets, tmp_path / "moved")
    assert moved["cost"]["bytes_per_image"] == metrics(tmp_path / "ap")["cost"]["bytes_per_image"]


def test_the_report_compares_it_with_the_heads_of_its_data_set(probes: Path) -> None:
    inputs = collect(Folders(probes / "a", datasets=(probes,)))
    said = transfer_table(inputs)
    assert said is not None
    trained_here, moved = (inputs.datasets["b"]["mae", head].measures["top1"].mean for head in ("abmilp", "abmilp-of-a"))
    assert [[cell.text for cell in row.cells[:5]] for row in said.rows] == [
        ["b", "mae", "abmilp-of-a", "a", "AbMILP"],
        ["b", "mae", "abmilp-of-a", "a", "average"],
    ]
    assert said.rows[0].cells[5].text.startswith(f"{signed(moved - trained_here)} ± ")
    assert said.rows[1].cells[-1].text == "ahead"
    assert transfer_table(replace(inputs, datasets={"a": inputs.datasets["a"]})) is None


def test_by_command(sets, probes: Path, tmp_path: Path, beyondcls) -> None:
    places = ("--features", sets["b"][0].where, "--test", sets["b"][1].where)
    out = beyondcls("transfer", "--probe", probes / "a/mae/abmilp", *places, "--out", tmp_path / "out")
    assert " % with abmilp of " in out
    assert read_result(tmp_path / "out/metrics.json")["command"].startswith("beyondcls transfer --probe")
    err = beyondcls("transfer", "--probe", tmp_path, *places, "--out", tmp_path / "out", fails=True)
    assert "trained/seed0.json, expected what `beyondcls probe --out" in err


def test_what_cannot_be_transferred_is_refused(sets, probes: Path, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=r"average has no parameters, so there is nothing to transfer; train that head"):
        transfer(probes / "b/mae/average", *sets["b"], tmp_path / "out")
    message = r"abmilp was trained on .* with encoder_weights w, .*other-0 is of .* with v, expected one encoder"
    with pytest.raises(BeyondClsError, match=message):
        transfer(probes / "a/mae/abmilp", *sets["other"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
