"""`beyondcls plan`: numbers that can be counted by hand, and the command, measured for real on small encoders and images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from extract.datasets import DATASETS
from extract.plan import Rates, measure
from pipelines.planning import trainings
from pipelines.planning.encoders import EncoderCost
from pipelines.planning.project import extractions, fits, in_words
from pipelines.planning.sizes import COUNTED, FACTS, PUBLISHED, Sizes, all_sizes, n_learnt, stand_ins
from pipelines.planning.trainings import Trainings, runs
from probe.timing import HeadRate
from store import BeyondClsError
from tests.extract.pictures import write_example
from tests.extract.tiny import TINY

# Bytes of an image: 1,000 of patch tokens, 10 of [cls], 6 of a map, 8 of its id. Extracted at 10/s, read at 100 kB/s.
NBYTES = {"patch/block1/view0": 1000, "cls/block1/view0": 10, "attention/cls/block1/view0": 6, "images/id": 8}
SHAPES = {"patch/block1/view0": (4, 8), "cls/block1/view0": (8,), "attention/cls/block1/view0": (2, 4)}
ENCODER = EncoderCost(Rates(8, 10.0, 100.0, 20.0, 1e5, 0), NBYTES, SHAPES, flops=7)
BARE = EncoderCost(ENCODER.rates, {n: size for n, size in NBYTES.items() if "cls" not in n}, SHAPES)
SIZES = {"d": Sizes(1000, 100, 5, False, PUBLISHED)}
LEARN, JUDGE, POOL = 0.01, 0.002, 0.001  # seconds of an image and a member
HEAD = 3 * 4 * (1000 * LEARN + 100 * JUDGE)  # three seeds, four epochs
STUDY = {"study": "s", "dataset": "d", "encoder": "e"}


def project(**sections: Any) -> dict[str, Any]:
    probe = {"epochs": 4, "warmup_epochs": 0, "seeds": [0, 1, 2]}
    return {"data": "nowhere", "datasets": {"d": {}}, "encoders": {"e": {"block": 1}}, "probe": probe, **sections}


EXTRACTED = [("extract", "train", 1_024_000, 100.0, 7000), ("extract", "test", 102_400, 10.0, 700)]


@pytest.mark.parametrize(
    ("sections", "works"),
    [
        ({}, EXTRACTED),
        ({"datasets": {"d": {"views": 3}}}, [("extract", "train", 1000 * (3 * 1016 + 8), 300.0, 21_000), EXTRACTED[1]]),
        ({"block_studies": {"b": {**STUDY, "stored": "0,1"}}}, EXTRACTED + [("extract-blocks", *one[1:]) for one in EXTRACTED]),
        ({"whole": {"w": {"encoder": "e", "dataset": "d"}}}, [*EXTRACTED, ("extract-whole", *EXTRACTED[1][1:])]),
    ],
)
def test_extractions(sections: dict[str, Any], works: list[tuple]) -> None:
    planned = extractions(project(**sections), {}, {"e": ENCODER, "b": ENCODER}, SIZES)
    assert [(one["stage"], one["split"], one["nbytes"], one["seconds"], one["flops"]) for one in planned] == works


def seconds(monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], memory: float) -> tuple[dict[str, float], dict[str, str]]:
    """Of each run, where so many bytes of features fit into memory; and what is left out."""

    def measure_head(spec: Any, shapes: Any, n_members: int, *_: Any) -> HeadRate:
        """[cls], averages and maps have no parameters; each member takes as long."""
        return HeadRate(n_members * LEARN, n_members * JUDGE, 0.0 if spec.aggregator == "abmilp" else POOL, 8)

    monkeypatch.setattr(trainings, "measure_head", measure_head)
    monkeypatch.setattr(trainings, "free_memory", lambda device: memory / trainings.MEMORY_SHARE)
    planned = Trainings(torch.device("cpu"))
    encoders = {"e": ENCODER, "other": BARE} if "other" in params["encoders"] else {"e": ENCODER}
    return {
        f"{run.name}@{run.encoder}": planned.seconds(run, SIZES["d"]) for run in runs(params, {}, encoders, SIZES)
    }, planned.left_out


ABMILP = {"heads": {"abmilp": {}}}


@pytest.mark.parametrize(
    ("sections", "memory", "takes"),
    [
        (ABMILP, 1e9, HEAD),
        (ABMILP, 0, HEAD),  # reading takes 4 · 1100 · 1000 / 1e5 = 44 s meanwhile
        ({"heads": {"abmilp": {"seeds": [0], "epochs": 40, "order": "own"}}}, 0, 40 * 1100 * 1000 / 1e5),
        ({"heads": {"abmilp": {"order": "own"}}}, 1e6, 3 * 4 * 1100 * 1000 / 1e5),  # of 1.1 MB
        ({"heads": {"abmilp": {"base_lrs": [0.1, 0.2]}}}, 1e9, HEAD + 6 * (4 * 900 * LEARN + 100 * JUDGE)),
        ({"cls_heads": {"cls": {}}}, 0, HEAD + 1100 * POOL),
        ({"cls_heads": {"knn": {"aggregator": "cls", "protocol": "knn"}}}, 0, 1100 * POOL),
        ({"studies": {"s": {**STUDY, "heads": {"abmilp": {}, "map": {"aggregator": "cls-attention"}}}}}, 1e9, 2 * HEAD + 1.1),
        ({"studies": {"s": {**STUDY, "percent": 10, "subset_seed": 0, "heads": {"abmilp": {}}}}}, 1e9, 12 * (1 + 0.2)),
        ({**ABMILP, "datasets": {"d": {"views": 4}}, "probe": {"epochs": 1, "warmup_epochs": 0, "seeds": [0]}}, 1e9, 31.0),
    ],
)
def test_trainings(monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], memory: float, takes: float) -> None:
    """Heads compute while features are read: each once, or at each visit where they don't fit into memory."""
    ((_, found),) = seconds(monkeypatch, project(**sections), memory)[0].items()
    assert found == pytest.approx(takes)


def test_what_cannot_be_counted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    study = {**STUDY, "ids": "nowhere/mine.txt", "heads": {"abmilp": {}}}
    params = project(encoders={"e": {}, "other": {}}, cls_heads={"cls": {}}, studies={"s": study})
    found, left_out = seconds(monkeypatch, params, 1e9)
    assert (found["cls@other"], found["s@e"]) == (0, 0)
    assert found["cls@e"] > 0
    assert ("other" in left_out["cls"], "nowhere/mine.txt" in left_out["s"]) == (True, True)


def test_published_sizes_are_of_the_splits_that_a_reader_has() -> None:
    for form, (sizes, *_) in FACTS.items():
        assert set(sizes) <= set(DATASETS[form].splits), form  # type: ignore[union-attr]


def test_sizes_of_sets_and_subsets(tmp_path: Path) -> None:
    write_example(tmp_path / "nus-wide", "nus-wide")
    few = {"form": "imagenet", "train_ids": "imagenet-1pct.txt"}
    sizes, images = all_sizes({"data": str(tmp_path), "datasets": {"mine": {"form": "coco"}, "nus-wide": {}, "few": few}})
    assert sizes == {
        "mine": Sizes(118_287, 5_000, 80, True, PUBLISHED),
        "nus-wide": Sizes(3, 1, 3, True, COUNTED),
        "few": Sizes(12_811, 50_000, 1000, False, PUBLISHED),
    }
    assert images is not None
    assert len(images) == 3  # of the first that is there
    for datasets, named in (({"mine": {}}, "'mine'"), ({"cub": {"test": "val"}}, "'val'")):
        with pytest.raises(BeyondClsError, match=named):
            all_sizes({"data": "nowhere", "datasets": datasets})
    (tmp_path / "list.txt").write_text("a\nb\n\nb\nc")
    counted = [({}, 1000), ({"percent": 2.5}, 25), ({"k_shot": 3}, 15), ({"ids": str(tmp_path / "list.txt")}, 3)]
    for of_run, n in [*counted, ({"ids": "nowhere/imagenet-1pct.txt"}, 12_811), ({"ids": "nowhere/mine.txt"}, None)]:
        assert n_learnt(of_run, SIZES["d"]) == n, of_run


def test_stand_ins_are_of_the_size_of_imagenets(tmp_path: Path) -> None:
    assert len(stand_ins(tmp_path, 2)) == 2
    files = sorted(tmp_path.rglob("*.jpg"))
    assert Image.open(files[0]).size == (500, 375)
    assert 70_000 < files[0].stat().st_size < 160_000  # 110 kB on average there
    assert files[0].read_bytes() != files[1].read_bytes()


def test_times_and_bytes_in_words() -> None:
    words = {0.25: "0.25 s", 99: "99 s", 100: "1.7 min", 7200: "2 hours", 3e5: "3 days"}
    assert {seconds: in_words(seconds) for seconds in words} == words
    assert ("1 GB too little" in fits(6e9, 5e9), "too little" in fits(6e9, 7e9)) == (True, False)


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
    "studies": {"one": {**STUDY, "dataset": "cifar10", "encoder": "tiny", "joined": "tiny", "heads": {"max": {}}}},
    "block_studies": {"two": {**STUDY, "dataset": "cifar10", "encoder": "tiny", "stored": "0,1", "heads": {"abmilp": {}}}},
}


@pytest.fixture(autouse=True)
def _tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each measurement, which is the number of images that are sampled alone."""
    for module in ("extract.plan", "pipelines.planning.encoders"):
        monkeypatch.setattr(f"{module}.measure", lambda *given, **options: measure(*given, **{**options, "seconds": 0.1}))


@pytest.fixture
def plan(beyondcls: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """What `beyondcls plan` says of a project."""

    def run_plan(params: dict[str, Any], *options: object, fails: bool = False) -> str:
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
        place = ("--params", tmp_path / "params.yaml", "--out", tmp_path / "features", "--seconds", 1)
        return beyondcls("plan", *place, *options, fails=fails)

    return run_plan


def test_a_whole_project(plan: Callable[..., str], tmp_path: Path) -> None:
    printed = plan(PROJECT, "--json", tmp_path / "plan.json", "--n-tasks", 3, "--gpu", "h100")
    for words in ("cifar10 5,000 1,000 10 counted", "3 tasks", "one h100", "not counted cls: bare"):
        assert words in printed
    written = json.loads((tmp_path / "plan.json").read_text())
    encoders = written["encoders"]
    assert {(one["encoder"], one["stage"]) for one in written["extractions"]} == {
        *((name, "extract") for name in ("tiny", "twin", "bare")),
        ("tiny", "extract-blocks"),
    }
    # 16 patch tokens, 32 wide, in float16; for a study also those of another block.
    assert encoders["tiny"]["nbytes"]["patch/block1/view0"] == 16 * 32 * 2
    assert {"patch/block0/view0", "patch/block1/view0"} <= encoders["two"]["nbytes"].keys()
    # Two that compute the same are measured once; a third has no [cls].
    rates = {name: one["rates"] for name, one in encoders.items()}
    assert rates["tiny"] == rates["twin"] == rates["two"] != rates["bare"]
    extraction_s = sum(one["seconds"] for one in written["extractions"])
    total = extraction_s / 3 + sum(one["seconds"] for one in written["trainings"])
    assert written["total"]["seconds"] == pytest.approx(total)
    # Three views of 5,000 training images and one of 1,000; of tiny twice, as it has a study of blocks.
    assert written["estimate"]["flops"] == 16_000 * sum(encoders[name]["flops"] for name in ("tiny", "tiny", "twin", "bare"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params.yaml", "plan.json"]


def test_without_images(plan: Callable[..., str]) -> None:
    params = {"data": "nowhere", "datasets": {"birds": {"form": "cub"}}, "encoders": {"tiny": PROJECT["encoders"]["tiny"]}}
    printed = plan(params, "--dtype", "int8")
    assert all(words in printed for words in ("stand-ins", "birds 5,994 5,794 200 as published"))


def test_one_extraction(beyondcls: Callable[..., str], tmp_path: Path) -> None:
    params, json_file = tmp_path / "params.yaml", tmp_path / "plan.json"
    params.write_text("encoders: {mine: {model: quickstart-mae, checkpoint: nowhere.pt}}\nextract: {batch_size: 4}\n")
    images, out = "quickstart/data/cifar10/test", tmp_path / "set"
    what = ("plan", "--encoder", "mine", "--data", images, "--out", out, "--params", params)
    printed = beyondcls(*what, "--views", 2, "--dtype", "int8", "--seconds", 1, "--json", json_file)
    written = json.loads(json_file.read_text())
    n_sampled = written["rates"]["n_sampled"]
    assert (written["n_images"], written["n_views"], 1 < n_sampled <= 1000) == (1000, 2, True)
    assert written["seconds"] == 1000 / written["rates"]["images_per_s"]
    assert ("1,000, 2 views each" in printed, f"by a sample of {n_sampled:,}" in printed) == (True, True)
    assert sorted(tmp_path.iterdir()) == [params, json_file]
    assert "there is no block 9" in beyondcls(*what, "--blocks", "9", fails=True)


ONE = PROJECT["studies"]["one"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"encoders": {}}, "encoders: {mae-b16: {}}"),
        ({"datasets": []}, "datasets: [cifar10]"),
        ({"encoders": {"mae-b61": {}}, "studies": {}, "block_studies": {}}, "'mae-b16'?"),
        ({"extract": {"dtpye": "int8"}}, "'dtype'?"),
        *(({"studies": {"one": {**ONE, place: "nobody"}}}, "'nobody'") for place in ("joined", "encoder")),
        ({"heads": {"abmlip": {}}}, "'abmilp'?"),
        ("--params params.yaml --gpu h10", "'h100'?"),
        ("", "--encoder NAME"),
        ("--params params.yaml --crop-pct 0.9", "--crop-pct 0.9"),
        ("--encoder mae-b16 --data nowhere", "--out features/mae-b16"),
    ],
)
def test_what_cannot_be(plan: Callable[..., str], beyondcls: Callable[..., str], changed: Any, named: str) -> None:
    is_file = isinstance(changed, dict)
    assert named in (plan({**PROJECT, **changed}, fails=True) if is_file else beyondcls("plan", *changed.split(), fails=True))
