"""`beyondcls depth` of NYUv2's layout made small: unpacked as the page says, extracted, measured, in rows and on the page."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from scipy.io import savemat

from pipelines.cli import app
from pipelines.parameters.measures import OF_DEPTH
from pipelines.report.collect import Folders, collect
from pipelines.report.sections.depth import section
from probe.depth.run import PLAN
from probe.depth.targets import Depth
from probe.result_files import read_result
from tests.pipelines.report.written import shown, tables
from tests.pipelines.test_extract import ENCODER

ROOT = Path(__file__).resolve().parents[2]
N, HEIGHT, WIDTH = 12, 30, 40
Command = Callable[..., str]


def nyu(folder: Path) -> None:
    """The published files, of other sizes: images whose brightness is their depth, metres; MATLAB's axes are the other way."""
    folder.mkdir()
    depths = np.random.default_rng(0).uniform(1, 5, (N, 1, 1)) + np.linspace(0, 1, WIDTH)[:, None] + np.zeros((1, HEIGHT))
    with h5py.File(folder / "nyu_depth_v2_labeled.mat", "w") as file:
        file["depths"] = depths.astype(np.float32)
        file["images"] = np.repeat((40 * depths).astype(np.uint8)[:, None], 3, 1)
    savemat(folder / "splits.mat", {"trainNdxs": np.arange(1, 9)[:, None], "testNdxs": np.arange(9, N + 1)[:, None]})


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to run in, with the set unpacked and features of it."""
    folder = tmp_path_factory.mktemp("depth")
    nyu(folder / "nyu")
    snippets = re.findall("```python\n(.*?)```", (ROOT / "docs/dense-data.md").read_text(), re.DOTALL)
    (unpacking,) = (text for text in snippets if "h5py" in text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(unpacking, {})
        Path("params.yaml").write_text(yaml.safe_dump({"encoders": {"tiny": ENCODER}}))
        for split in ("train", "test"):
            given = ["--encoder", "tiny", "--params", "params.yaml", "--data", f"nyu/images/{split}"]
            given += ["--out", f"features/{split}", "--crop-mode", "squash", "--crop-pct", "1"]
            app(["extract", *given], standalone_mode=False)
        yield folder


SETS = ("--features", "features/train", "--test", "features/test")
MAPS = ("--maps", "nyu/depth/train", "--test-maps", "nyu/depth/test")
QUICK = ("--epochs", 20, "--batch-size", 2, "--base-lr", 0.5, "--seeds", "0,1", "--loss-size", 16)


def test_the_layout_of_nyu(extracted: Path, beyondcls: Command) -> None:
    said = beyondcls("depth", *SETS, *MAPS, *QUICK, "--cls", "--final-norm", "--out", "depth/nyu/tiny")
    content = read_result(extracted / "depth/nyu/tiny/metrics.json")
    assert (content["task"], content["n_training"], content["n_test"], content["grid"]) == ("depth", 8, 4, [4, 4])
    pixels = {"measured": 4 * HEIGHT * WIDTH, "missing": 0, "beyond": 0, "outside": 0}
    assert (content["pixels"]["test"], content["n_without"]) == (pixels, {"training": 0, "test": 0})
    linear, mean = content["protocols"]["linear"], content["protocols"]["mean"]
    assert linear["rmse"]["mean"] < mean["rmse"]["mean"], "an image's brightness is its depth"
    assert (linear["seeds"], len(linear["rmse"]["values"]), len(linear["rmse"]["without"])) == ([0, 1], 2, 4)
    assert "4 test images; 4,800 pixels measured" in said
    for split in ("train", "test"):
        (extracted / "nyu/normals" / split).mkdir(parents=True)
        for file in (extracted / "nyu/depth" / split).iterdir():
            np.save(extracted / "nyu/normals" / split / file.name, np.tile(np.float32([0, 0.6, 0.8]), (HEIGHT, WIDTH, 1)))
    maps = ("--maps", "nyu/normals/train", "--test-maps", "nyu/normals/test")
    beyondcls("depth", "--normals", *SETS, *maps, *QUICK, "--out", "depth/nyu-normals/tiny")
    angles = read_result(extracted / "depth/nyu-normals/tiny/metrics.json")["protocols"]
    assert angles["linear"]["mean_angle"]["mean"] < 20, "all of them are one"
    assert angles["mean"]["mean_angle"]["mean"] == pytest.approx(0, abs=1e-3)

    of_page = section(collect(Folders(depth=extracted / "depth")))
    assert of_page is not None
    by_name = tables(of_page)
    assert [row[:4] for row in shown(by_name["depth"])] == [["nyu", "tiny", head, "1"] for head in ("linear", "mean, no image")]
    assert [row[0] for row in shown(by_name["normals"])] == ["nyu-normals"] * 2
    assert beyondcls("report", "--only", "depth", "--depth", "depth")


def test_bad_input_is_one_line(extracted: Path, beyondcls: Command) -> None:
    for given, message in (
        (("--test-maps", "nyu"), "4 of 4 images of features/test have no file of depth in nyu, first '0009'"),
        (("--maps", "nyu/images/train"), "0001.png holds [30, 40, 3] uint8"),
        (("--eigen-crop",), "--eigen-crop is a part of NYUv2's 640 x 480"),
        (("--max-depth", 0.5), "usable value of depth: 0 are missing, 9600 beyond the range of depths"),
    ):
        assert message in beyondcls("depth", *SETS, *MAPS, "--out", "bad", *given, fails=True)
    assert not Path("bad").exists()


def test_defaults_in_words_are_those_of_the_plan() -> None:
    depth, seeds = Depth(), ",".join(map(str, PLAN.seeds))
    said = {"min_depth": depth.low, "max_depth": depth.high, "per_metre": depth.per_metre}
    said |= {name: getattr(PLAN.recipe, name) for name in ("epochs", "batch_size", "base_lr", "weight_decay")}
    assert {name: float(OF_DEPTH[name].default) for name in said} == said
    assert OF_DEPTH["seeds"].default == seeds


def test_an_entry_gives_options_and_the_command_line_wins(extracted: Path, beyondcls: Command) -> None:
    sets = {"features": "train", "test": "test", "maps": "nyu/depth/train", "test_maps": "nyu/depth/test"}
    quick = {"epochs": 2, "batch_size": 2, "seeds": [5, 7], "max_depth": 9, "final_norm": True}
    entry = {"dataset": "nyu", "encoder": "tiny", **sets, **quick}
    Path("other.yaml").write_text(yaml.safe_dump({"depth": {"nyu": entry, "nil": {**entry, "epoch": 2}}}))
    beyondcls("depth", *SETS, *MAPS, "--params", "other.yaml", "--entry", "nyu", "--epochs", 1, "--out", "entry")
    content = read_result(extracted / "entry/metrics.json")
    linear = content["protocols"]["linear"]
    assert (linear["seeds"], linear["recipe"]["epochs"], linear["recipe"]["batch_size"]) == ([5, 7], 1, 2)
    assert (content["target"]["high"], content["final_norm"]) == (9, True)
    said = beyondcls("depth", *SETS, *MAPS, "--params", "other.yaml", "--entry", "nil", "--out", "bad", fails=True)
    assert "unknown parameter in depth.nil 'epoch'; did you mean 'epochs'?" in said
