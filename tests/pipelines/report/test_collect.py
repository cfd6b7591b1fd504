import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs, collect, subset
from store import BeyondClsError
from store.format.pretraining import UNTRAINED
from tests.pipelines.report.written import write_all, write_attention, write_probe


def test_reads_what_the_stages_write(tmp_path: Path):
    paths = write_all(tmp_path)
    inputs = collect(Folders(paths["probes"], paths["attention"]))
    assert inputs.encoders == ["mae", "random"]
    assert inputs.heads == ["cls", "average", "abmilp"]
    probe = inputs.probes["mae", "abmilp"]
    assert (probe.measures["top1"].mean, probe.measures["top1"].values) == (51.5, (51.0, 51.5, 52.0))
    assert probe.curve is not None
    assert probe.curve.loss == (3.0, 2.0)  # seeds 0, 1, 2 add 1 on average
    assert probe.curve.top1 == (11.0, 21.0)
    assert inputs.attention["mae"].statistics["cls_self"] == [(0.5, 0.125), (0.75, 0.125)]


def test_order_puts_untrained_encoders_last_and_unknown_heads_behind_ours(tmp_path: Path):
    """Untrained are also weights that come from a file."""
    for encoder in ("a", "a-twin", "z", "b-Random"):
        for head in ("zzz", "abmilp2", "abmilp"):
            write_probe(tmp_path, encoder, head, 10.0, **({"family": UNTRAINED} if encoder == "a" else {}))
    inputs = collect(Folders(tmp_path, tmp_path / "none"))
    assert inputs.encoders == ["b-Random", "z", "a", "a-twin"]
    assert inputs.heads == ["abmilp", "abmilp2", "zzz"]


def test_twin_has_the_same_architecture(tmp_path: Path):
    for encoder in ("big", "a-twin", "b-twin"):
        write_probe(tmp_path / "p", encoder, "cls", 10.0)
        write_attention(tmp_path / "a", encoder, "d")
    summary = tmp_path / "a" / "a-twin" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"architecture": {"patch_size": 16}}))
    assert collect(Folders(tmp_path / "p", tmp_path / "a")).twin("big") == "b-twin"
    assert collect(Folders(tmp_path / "p", tmp_path / "none")).twin("big") == "a-twin"
    assert collect(Folders(tmp_path / "p", tmp_path / "a")).twin("a-twin") is None


def test_missing_probes_are_named_with_the_remedy(tmp_path: Path):
    with pytest.raises(
        BeyondClsError, match=r"no metrics under .*nowhere.*ENCODER/HEAD/metrics.json.*beyondcls probe.*--probes"
    ):
        collect(Folders(tmp_path / "nowhere", tmp_path))


@pytest.fixture
def several(tmp_path: Path) -> Inputs:
    paths = write_all(tmp_path)
    write_attention(paths["attention"], "seen", "d")
    inputs = collect(Folders(paths["probes"], paths["attention"]))
    groups = {"one": inputs.probes, "other": {("random", "cls"): inputs.probes["random", "cls"]}}
    return replace(inputs, studies=groups, datasets=groups)


def test_keeps_what_is_of_these_encoders(several: Inputs):
    mae = subset(several, ["mae"])
    assert mae.encoders == ["mae"]
    assert set(mae.probes) == {("mae", head) for head in ("cls", "average", "abmilp")}
    assert set(mae.studies) == set(mae.datasets) == {"one"}
    assert subset(several, ["random", "mae"]).encoders == ["mae", "random"]
    assert mae.folders == several.folders


def test_unknown_encoders_are_named_with_the_remedy(several: Inputs):
    with pytest.raises(BeyondClsError, match=r"unknown encoder 'mea'; did you mean 'mae'\? known: mae, seen, random"):
        subset(several, ["mae", "mea"])


def test_encoders_without_probes_are_no_report(several: Inputs):
    with pytest.raises(BeyondClsError, match="no head was probed on seen, expected one at least; run `beyondcls probe`"):
        subset(several, ["seen"])
