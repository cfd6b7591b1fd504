import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipelines.report.collect import Folders, collect
from store import BeyondClsError
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
    assert inputs.attention["mae"].statistics["cls_self"] == ((0.5, 0.125), (0.75, 0.125))


def test_order_puts_random_encoders_last_and_unknown_heads_behind_ours(tmp_path: Path):
    for encoder in ("a-Random", "z", "b"):
        write_probe(tmp_path / "p", encoder, "zzz", 10.0)
        write_probe(tmp_path / "p", encoder, "abmilp2", 10.0)
        write_probe(tmp_path / "p", encoder, "abmilp", 10.0)
    inputs = collect(Folders(tmp_path / "p", tmp_path / "none"))
    assert inputs.encoders == ["b", "z", "a-Random"]
    assert inputs.heads == ["abmilp", "abmilp2", "zzz"]


def test_twin_has_the_same_architecture(tmp_path: Path):
    for encoder in ("big", "random-a", "random-b"):
        write_probe(tmp_path / "p", encoder, "cls", 10.0)
        write_attention(tmp_path / "a", encoder, "d")
    summary = tmp_path / "a" / "random-a" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"architecture": {"patch_size": 16}}))
    assert collect(Folders(tmp_path / "p", tmp_path / "a")).twin("big") == "random-b"
    assert collect(Folders(tmp_path / "p", tmp_path / "none")).twin("big") == "random-a"
    assert collect(Folders(tmp_path / "p", tmp_path / "a")).twin("random-a") is None


def test_missing_probes_are_named_with_the_remedy(tmp_path: Path):
    with pytest.raises(
        BeyondClsError, match=r"no metrics under .*nowhere.*ENCODER/HEAD/metrics.json.*beyondcls probe.*--probes"
    ):
        collect(Folders(tmp_path / "nowhere", tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"encoder": "a", "options": {}}', "has no 'top1'"),
        ('{"encoder": "a", "options": {}, "top1": {"values": [], "mean": NaN, "std": 0}}', "no finite number"),
        ('{"encoder": "a", "options": {}, "top1": {"values": ["x"], "mean": 1, "std": 0}}', "damaged"),
    ],
)
def test_broken_metrics_are_named_with_the_remedy(tmp_path: Path, content: str, message: str):
    folder = write_probe(tmp_path, "mae", "cls", 10.0)
    (folder / "metrics.json").write_text(content)
    with pytest.raises(BeyondClsError, match=r"metrics\.json") as error:
        collect(Folders(tmp_path, tmp_path / "none"))
    assert message in str(error.value)
    assert "beyondcls probe" in str(error.value)


def test_broken_statistics_are_named_with_the_remedy(tmp_path: Path):
    write_probe(tmp_path / "p", "mae", "cls", 10.0)
    folder = write_attention(tmp_path / "a", "mae", "d")
    (folder / "statistics.csv").write_text("statistic,block,mean,std\ncls_self,0,much,0\n")
    with pytest.raises(BeyondClsError, match=r"summary.json or a table beside it is damaged .*much.*beyondcls attention"):
        collect(Folders(tmp_path / "p", tmp_path / "a"))


def test_missing_tables_are_missing_not_empty(tmp_path: Path):
    folder = write_probe(tmp_path, "mae", "abmilp", 10.0)
    (folder / "curves.csv").unlink()
    (folder / "trained" / "weights.npy").unlink()
    probe = collect(Folders(tmp_path, tmp_path / "none")).probes["mae", "abmilp"]
    assert probe.curve is None
    assert probe.weights is None
    assert math.isclose(probe.measures["entropy"].mean, 1.1)
    assert np.isclose(probe.measures["top1"].std, 0.5)
