"""`beyondcls plan` of a whole project, measured for real on encoders and images that are small."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from pipelines.planning import measuring
from pipelines.planning.disk import measure_disk
from pipelines.planning.stand_in import stand_in
from tests.extract.tiny import TINY

PROJECT: dict[str, Any] = {
    "data": "quickstart/data",
    "datasets": {"cifar10": {"views": 3}},
    # Weights that are named but not there are not needed for it.
    "encoders": {
        "tiny": {"model": "vit_tiny_patch16_224", "arguments": TINY, "checkpoint": "nowhere.pt", "weights": "0" * 32},
        "twin": {"model": "vit_tiny_patch16_224", "arguments": TINY},
        "bare": {"model": "vit_tiny_patch16_224", "arguments": {**TINY, "class_token": False, "global_pool": "avg"}},
    },
    "extract": {"statistics": ["cls_self"], "dtype": "float16"},
    "cls_heads": {"cls": {}},
    "heads": {"abmilp": {}},
    "probe": {"seeds": [0, 1], "epochs": 3, "warmup_epochs": 0},
    "studies": {"one": {"study": "s", "dataset": "cifar10", "encoder": "tiny", "joined": "tiny", "heads": {"max": {}}}},
    "whole": {"tiny": {"dataset": "cifar10", "encoder": "tiny"}},
    "block_studies": {
        "two": {"study": "b", "dataset": "cifar10", "encoder": "tiny", "stored": "0,1", "heads": {"abmilp": {"blocks": [0, 1]}}}
    },
}


@pytest.fixture
def plan(beyondcls: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What `beyondcls plan` says of a project, on a disk of which the speed is known."""
    monkeypatch.setattr(measuring, "measure_disk", lambda folder: (1e8, 1e9))

    def run_plan(project: dict[str, Any], *options: object, fails: bool = False) -> str:
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(project))
        place = ("--params", tmp_path / "params.yaml", "--out", tmp_path / "features", "--sample", 4)
        return beyondcls("plan", *place, *options, fails=fails)

    return run_plan


def test_a_whole_project(plan: Callable[..., str], tmp_path: Path) -> None:
    printed = plan(PROJECT, "--json", tmp_path / "plan.json", "--n-tasks", 3, "--gpu", "h100")
    for words in (
        "hours are those of this machine, without a GPU",
        "an estimate, not measured: GPU-hours at 40% of an H100, 989 TFLOP/s in bf16",
        "images/s with an H100",
        "by 4 images an encoder: quickstart/data/cifar10/train",
        "cifar10 5,000 1,000 10 counted",
        "not trained, as the encoder lacks what it reads: cls of bare",
        "--dtype int8 would write",
        "--views 1 would write",
        "with the encoder in the loop",
        "3 tasks",
        "fit into the memory that is free here",
    ):
        assert words in printed
    written = json.loads((tmp_path / "plan.json").read_text())
    assert {name: stage["n"] for name, stage in written["stages"].items()} == {
        "extract": 6,
        "probe-cls": 2,
        "probe": 3,
        "study": 1,
        "extract-blocks": 2,
        "study-blocks": 1,
        "extract-whole": 1,
        "attention": 3,
    }
    # 16 patch tokens, 32 wide, in float16.
    assert written["encoders"]["tiny"]["nbytes"]["patch/block1/view0"] == 16 * 32 * 2
    assert "patch/block0/view0" in written["encoders"]["block_studies.two"]["nbytes"]
    a_view = sum(n for name, n in written["encoders"]["tiny"]["nbytes"].items() if name.endswith("view0"))
    an_image = sum(n for name, n in written["encoders"]["tiny"]["nbytes"].items() if not name.endswith("view0"))
    train = next(w for w in written["works"] if (w["stage"], w["name"], w["encoder"]) == ("extract", "train", "tiny"))
    assert train["written"] == 5000 * (3 * a_view + an_image)
    assert train["seconds"]["writing"] == train["written"] / 1e8
    total = written["total"]
    assert total["elapsed"] == pytest.approx(sum(work["elapsed"] for work in written["works"]))
    assert total["elapsed_shared"] < total["elapsed"]
    assert written["otherwise"]["--views 1"]["written"] < total["written"]
    # Three views of 5,000 training images and one of 1,000; likewise for the study of blocks; 1,000 as a whole.
    flops = {name: written["encoders"][name]["flops"] for name in ("tiny", "twin")}
    assert {name: written["estimate"]["flops"][name]["cifar10"] / flops[name] for name in flops} == {"tiny": 33e3, "twin": 16e3}
    assert f"tiny {flops['tiny'] / 1e9:,.1f} " in printed
    # Two that compute the same are measured once; a third has no [cls].
    rates = {name: one["rates"] for name, one in written["encoders"].items()}
    assert rates["tiny"] == rates["twin"] == rates["block_studies.two"] != rates["bare"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params.yaml", "plan.json"]


def test_without_images(plan: Callable[..., str]) -> None:
    encoders = {"tiny": PROJECT["encoders"]["tiny"]}
    project = {"data": "nowhere", "datasets": {"birds": {"form": "cub"}}, "encoders": encoders}
    printed = plan(project, "--dtype", "int8")
    assert "stand-in JPEGs of 500 x 375, as no data set is there" in printed
    assert "birds 5,994 5,794 200 as published" in printed
    assert "--dtype int8 would" not in printed  # it is


def test_stand_ins_are_like_photographs_of_imagenet() -> None:
    encoded = stand_in(0)
    assert Image.open(io.BytesIO(encoded)).size == (500, 375)
    assert 70_000 < len(encoded) < 160_000  # 110 kB on average there
    assert stand_in(1) != encoded


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    assert min(measure_disk(tmp_path)) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoders": {}}, "has no encoders, expected one or more by name; add e.g. encoders: {mae-b16: {}}"),
        ({"datasets": []}, "has no datasets, expected one or more names; add e.g. datasets: [cifar10]"),
        (
            {"encoders": {"mae-b61": {}}, "studies": {}, "block_studies": {}},
            "unknown encoder 'mae-b61'; did you mean 'mae-b16'?",
        ),
        ({"extract": {"dtpye": "int8"}}, "unknown parameter in extract 'dtpye'; did you mean 'dtype'?"),
        (
            {"studies": {"one": {**PROJECT["studies"]["one"], "joined": "nobody"}}},
            "studies.one.joined is 'nobody', expected one",
        ),
        ({"studies": {"one": {**PROJECT["studies"]["one"], "encoder": "nobody"}}}, "unknown encoder 'nobody'"),
        ({"heads": {"abmlip": {}}}, "unknown aggregator 'abmlip'; did you mean 'abmilp'?"),
    ],
)
def test_a_file_that_describes_no_project(plan: Callable[..., str], changed: dict[str, Any], message: str) -> None:
    assert message in plan({**PROJECT, **changed}, fails=True)


def test_options_that_do_not_go_together(plan: Callable[..., str], beyondcls: Callable[..., str]) -> None:
    assert "unknown GPU 'h10'; did you mean 'h100'?" in plan(PROJECT, "--gpu", "h10", fails=True)
    assert "nothing to plan; give --encoder NAME, --data and --out for one extraction, or --params" in beyondcls(
        "plan", fails=True
    )
    assert "--crop-pct 0.9 is of one extraction; name it with --encoder" in plan(PROJECT, "--crop-pct", "0.9", fails=True)
    assert "--heads 3 is of one extraction" in plan(PROJECT, "--heads", 3, fails=True)
    single = ("plan", "--encoder", "mae-b16", "--data", "nowhere")
    assert "no folder was named for mae-b16; give --out, e.g. --out features/mae-b16" in beyondcls(*single, fails=True)
    assert "--json x.json is for a whole project; leave out --encoder" in beyondcls(
        *single, "--out", "x", "--json", "x.json", fails=True
    )
