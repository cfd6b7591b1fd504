"""An encoder without [cls] beside one that has it, through the commands of dvc.yaml."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from extract.encoders.quickstart import ARCHITECTURE
from pipelines.cli import app
from pipelines.quickstart.compose import main as compose
from probe.result_files import read_result
from store import FeatureStore
from tests.machines.project import few_images
from tests.pipelines.test_cli import ROOT

PARAMS = """\
encoders:
  with: {model: quickstart-random}
  without: {model: test_vit2, random_seed: 0}
extract: {batch_size: 16, statistics: [patch_self, cls_self, cls_norm_ratio]}
cls_heads: {cls: {}}
heads: {average: {}, abmilp: {}, near: {aggregator: average, protocol: {name: knn, ks: [3]}}}
own_heads: {mine: {aggregator: "heads/mine.py:Mine"}}
probe: {epochs: 2, warmup_epochs: 0, batch_size: 16, seeds: [0, 1], converged: false}
studies:
  selection:
    encoder: without
    joined: with
    heads: {cls-average: {}, norm: {}, k-means: {}}
"""
MINE = """\
from beyondcls import Aggregator, Pooled


class Mine(Aggregator):
    reads = ("cls", "patch")

    def forward(self, features):
        return Pooled(features["cls"] + features["patch"].mean(1), None)
"""
HEADS = ("cls", "average", "abmilp", "near", "mine")
TO_TRAIN = ("average", "abmilp", "near")  # without [cls]
OUTS = {"curves.csv", "description.json", "metrics.json", "trained"}


def features(encoder: str, split: str) -> str:
    return f"features/{encoder}-{split}"


def sets(encoder: str) -> tuple[str, ...]:
    return "--features", features(encoder, "train"), "--test", features(encoder, "test"), "--params", "params.yaml"


def content(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*"))


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with images, parameters, a head of one's own and features of both encoders, to run in."""
    folder = tmp_path_factory.mktemp("project")
    for split, n in (("train", 24), ("test", 12)):
        shutil.copytree(ROOT / "quickstart/data/cifar10" / split, folder / "data" / split)
        few_images(folder / "data" / split, n)
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "heads").mkdir()
    (folder / "heads/mine.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(ARCHITECTURE, "depth", 1)
        compose("data", Path("composed"), split="test", n_images=4)
        for encoder in ("with", "without"):
            common = ["extract", "--params", "params.yaml", "--encoder", encoder]
            for split in ("train", "test"):
                app([*common, "--data", "data", "--split", split, "--out", features(encoder, split)], standalone_mode=False)
            whole = ["--crop-mode", "squash", "--crop-pct", "1", "--out", features(encoder, "composed")]
            app([*common, "--data", "composed/images.csv", *whole], standalone_mode=False)
        yield folder


@pytest.mark.usefixtures("no_plots")
def test_every_stage_goes_through_and_what_there_is_none_of_has_a_dash(beyondcls, project):
    for encoder in ("with", "without"):
        heads = [word for head in HEADS for word in ("--head", head)]
        output = beyondcls("probe", *sets(encoder), *heads, "--skip-absent", "--out", f"probes/{encoder}")
        for head in HEADS:
            can_train = encoder == "with" or head in TO_TRAIN
            expected = "top-1" if can_train else f"not trained, {encoder} has no cls tokens"
            assert f"probes/{encoder}/{head}: {expected}" in output
            assert set(content(project / "probes" / encoder / head)) >= OUTS
        beyondcls("attention", "--features", features(encoder, "test"), "--out", f"attention/{encoder}")
        of_attention = {"heads.csv", "maps", "statistics.csv", "summary.json"}  # all outs of its stage
        assert of_attention <= set(content(project / "attention" / encoder))
    joined = ("--joined", features("with", "train"), "--joined-test", features("with", "test"))
    study = ("--study", "selection", *joined, "--skip-absent", "--out", "studies/selection/without")
    output = beyondcls("probe", *sets("without"), *study)
    assert "studies/selection/without/cls-average: not trained, without has no cls tokens" in output
    for encoder in ("with", "without"):
        probes = ("--probes", f"probes/{encoder}")
        of_study = ("--probes", "studies/selection/without") if encoder == "without" else ()
        beyondcls("divergence", *probes, *of_study, "--attention", f"attention/{encoder}", "--out", f"divergence/{encoder}")
        composed = ("--features", features(encoder, "composed"))
        beyondcls("localise", *composed, *probes, "--head", "abmilp", "--workers", "1", "--out", f"localisation/{encoder}")
    beyondcls("report", "--data", "data", "--split", "test")
    filled = pd.read_csv(project / "report/tables/accuracy.csv", index_col="encoder")[[*HEADS]].notna()
    assert filled.T.to_dict("list") == {"with": [True] * len(HEADS), "without": [head in TO_TRAIN for head in HEADS]}


def test_statistics_of_the_parameter_file_are_for_all_encoders(beyondcls):
    for encoder, statistics in (("with", ("cls_self", "patch_self", "cls_norm_ratio")), ("without", ("patch_self",))):
        assert FeatureStore.open(features(encoder, "test")).spec.statistics == statistics
    given = ("--params", "params.yaml", "--encoder", "without", "--data", "data", "--split", "test", "--out", "other")
    output = beyondcls("extract", *given, "--statistics", "patch_self,cls_self", fails=True)
    assert "without has no [cls] token, so no cls_self; it can have: patch_self" in output


def test_it_is_an_error_unless_it_is_asked_for(beyondcls, tmp_path):
    out, probe = tmp_path / "cls", ("probe", *sets("without"), "--head")
    beyondcls(*probe, "average", "--out", out)
    before = content(out)
    assert "has no [cls] tokens" in beyondcls(*probe, "cls", "--out", out, fails=True)
    assert content(out) == before
    # An earlier result does not stay where there is none now; blocks and maps that were not extracted are another matter.
    beyondcls(*probe, "cls", "--skip-absent", "--out", out)
    assert set(content(out)) == OUTS
    metrics = read_result(out / "metrics.json")
    assert (metrics["encoder"], metrics["aggregator"], metrics["absent"]) == ("without", "cls", ["cls"])
    for wrong in (("--block", "0"), ("--option", "blocks=0,1")):
        beyondcls(*probe, "abmilp", *wrong, "--skip-absent", "--out", tmp_path / "abmilp", fails=True)
