"""Images that a function of the user's gives, from params.yaml to a probe."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipelines.code.reader import main as write_reader
from pipelines.parameters.datasets import images_of, is_missing
from pipelines.parameters.params import read_params
from pipelines.planning.sizes import COUNTED, Sizes, all_sizes
from pipelines.report.project import project as folders_of
from probe.result_files import read_result
from store import BeyondClsError, open_store
from tests.folders import files

ENCODER = {
    "model": "vit_tiny_patch16_224",
    "arguments": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "random_seed": 0,
}
CODE = """
import numpy as np
from torch.utils.data import Dataset

class Shades(Dataset):
    classes = ["dark", "bright"]

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, row):
        noise = np.random.default_rng(1000 * self.seed + row).integers(0, 100, (32, 32, 3), np.uint8)
        return noise + np.uint8(100 * (row % 2)), row % 2

def make(split, n):
    return Shades(n, {"train": 1, "validation": 2}[split])
"""
Command = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/shades").mkdir(parents=True)
    (tmp_path / "data/shades/own.py").write_text(CODE)
    entry = {"function": "own.py:make", "data_arguments": {"n": 70}, "test": "validation"}
    params = {"data": "data", "datasets": {"shades": entry}, "encoders": {"tiny": ENCODER}, "extract": {"shard_rows": 32}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    return tmp_path


@pytest.fixture
def extract(project: Path, beyondcls: Command) -> Command:
    def extract(*options: object, split: str = "train", out: str | None = None, fails: bool = False) -> str:
        given = ["--encoder", "tiny", "--params", "params.yaml", "--dataset", "shades", "--split", split]
        return beyondcls("extract", *given, "--out", out or f"features/{split}", *options, fails=fails)

    return extract


def test_from_a_function_to_a_probe(project: Path, extract: Command, beyondcls: Command) -> None:
    assert "classes: 2, first dark, last bright; 35 images each" in extract()
    extract(split="test")
    sets = ("--features", "features/train", "--test", "features/test")
    beyondcls(
        "probe", *sets, "--head", "average", "--epochs", "5", "--warmup-epochs", "0", "--out", "probes/a", "--device", "cpu"
    )
    assert read_result(project / "probes/a/metrics.json")["top1"]["mean"] == pytest.approx(100), "shades are easy"


def test_processes_write_the_same(project: Path, extract: Command) -> None:
    """They call the function again: its class is in a file that they cannot import by name."""
    extract()
    extract("--on", "processes", "--tasks", "2", out="features/shared")
    assert files(project / "features/shared") == files(project / "features/train")


def test_a_set_stays_if_the_images_are_the_same(project: Path, extract: Command) -> None:
    extract()
    before = files(project / "features/train")
    (project / "data/shades/own.py").write_text(CODE + "\n# another version of the code\n")
    assert "not computed again, a sample of 36 of its 70 images agrees" in extract("--update")
    assert files(project / "features/train") == before
    (project / "data/shades/own.py").write_text(CODE.replace("100 *", "101 *"))
    assert "data differ" in extract(fails=True)
    key = open_store("features/train").spec.key
    extract("--update")
    assert open_store("features/train").spec.key != key


def test_by_name_on_the_command_line(project: Path, beyondcls: Command) -> None:
    given = ("extract", "--encoder", "tiny", "--params", "params.yaml", "--data", "data/shades/own.py:make", "--split", "train")
    assert "data/shades/own.py:make fails" in beyondcls(*given, "--out", "features/a", fails=True)
    beyondcls(*given, "--data-argument", "n=3", "--out", "features/a")
    store = open_store("features/a")
    assert (len(store), store.attributes["classes"]) == (3, ["dark", "bright"])
    refused = beyondcls(*given[:-4], "--data", "data", "--data-argument", "n=3", "--out", "features/b", fails=True)
    assert "data_arguments are {'n': 3}, but no function gives these images" in refused


def test_the_entry_of_a_data_set(project: Path) -> None:
    params = read_params(project / "params.yaml")
    assert images_of(params, "shades", "test") == {
        "data": "data/shades/own.py:make",
        "data_arguments": {"n": 70},
        "split": "validation",
    }
    assert all_sizes(params)[0]["shades"] == Sizes(70, 70, 2, False, COUNTED)
    (project / "probes/shades/tiny/average").mkdir(parents=True)
    (project / "probes/shades/tiny/average/metrics.json").touch()
    assert folders_of(project).images == str(project / "data/shades/own.py:make")
    params["datasets"]["shades"] = {"function": "own.images:make", "data_arguments": ["n=3"]}
    with pytest.raises(BeyondClsError, match=r"datasets\.shades\.data_arguments is \['n=3'\], expected names and values"):
        images_of(params, "shades", "test")
    del params["datasets"]["shades"]["data_arguments"]
    assert images_of(params, "shades", None) == {"data": "own.images:make"}


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        ("data", False),
        ("data/shades/own.py:make", False),
        ("other.py:make", True),
        ("own.images:make", False),
        ("s3://b", False),
    ],
)
def test_what_is_missing(data: str, missing: bool, project: Path) -> None:
    assert is_missing(data) == missing


def test_its_code_and_what_that_imports_has_digests(project: Path) -> None:
    (project / "readers").mkdir()
    (project / "readers/function.json").write_text('{"extract/datasets/objects.py": "0"}')
    (project / "heads").mkdir()
    (project / "heads/shading.py").write_text("STEP = 100\n")

    def digests() -> dict[str, str]:
        write_reader("shades", project / "shades.json", project / "params.yaml", project / "readers")
        return json.loads((project / "shades.json").read_text())["readers"]["function"]

    (project / "data/shades/own.py").write_text("from heads.shading import STEP\n" + CODE)
    before = digests()
    assert before.keys() == {"extract/datasets/objects.py", "data/shades/own.py", "heads/shading.py"}
    (project / "heads/shading.py").write_text("STEP = 101\n")
    assert {name for name, digest in digests().items() if digest != before[name]} == {"heads/shading.py"}
