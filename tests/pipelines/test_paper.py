"""The whole paper as one project: paper/params.yaml, on a few fabricated images and tiny encoders."""

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extract.datasets import DATASETS, open_images
from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.params import read_params
from pipelines.parameters.studies import plans_of_study, studies_of
from tests.extract.pictures import write_example
from tests.machines.machine import QUICK_DVC
from tests.machines.project import ROOT
from tests.pipelines.forked import beyondcls_in
from tests.pipelines.test_dvc import edit, run

PARAMS = read_params(ROOT / "paper/params.yaml")
DVC = (sys.executable, "-P", str(QUICK_DVC))
ENCODERS, SETS = ("mae-b16",), ("imagenet", "coco")  # images with one label, and with several
OF_ANOTHER_ENCODER = ("table-6", "figure-7")  # whose attention heads read
SIZES = {"random_seed": 0, "arguments": {"depth": 12, "embed_dim": 24, "num_heads": 2}, "batch_size": 8, "input_size": 112}
BRIEF = {"epochs": 1, "warmup_epochs": 0}


class TestParameters:
    @pytest.mark.parametrize("name", studies_of(PARAMS))
    def test_studies_can_be_made(self, name: str) -> None:
        entry = studies_of(PARAMS)[name][1]
        plans, _ = plans_of_study(PARAMS, name, encoder=entry["encoder"], dataset=entry["dataset"])
        assert plans
        assert {entry["encoder"], entry.get("joined", entry["encoder"])} <= set(PARAMS["encoders"])

    def test_every_published_table_has_its_stage(self) -> None:
        files = (ROOT / "pipelines/report/published").glob("table_*.py")
        assert {file.stem.replace("_", "-") for file in files} <= set(PARAMS["tables"])

    def test_data_sets_are_read_by_their_own_form(self) -> None:
        assert {values["form"] for values in datasets_of(PARAMS).values()} <= set(DATASETS)


def shrink(params: dict[str, Any]) -> None:
    """The same project with a few encoders, tiny ones, and one epoch."""
    params["encoders"] = {name: {**params["encoders"][name], **SIZES} for name in ENCODERS}
    for section in ("studies", "block_studies", "divergence", "localised", "by_block"):
        kept = {name: e for name, e in params[section].items() if {e["encoder"], e.get("joined", e["encoder"])} <= {*ENCODERS}}
        params[section] = {name: {**entry, **(BRIEF if "stud" in section else {})} for name, entry in kept.items()}
    params["datasets"] = {name: {**params["datasets"][name], **BRIEF} for name in SETS}
    params["divergence"] = {}  # of a study that reads another encoder
    left_out = {f"table-2-{name}" for name in PARAMS["datasets"] if name not in SETS} | {*OF_ANOTHER_ENCODER}
    params["tables"] = {name: table for name, table in params["tables"].items() if name not in left_out}
    params["probe"]["seeds"] = [0]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("paper")
    for name in ("store", "extract", "probe", "pipelines", "heads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("beyondcls.py", "dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "paper", folder / "paper")
    shutil.copy(folder / "paper/params.yaml", folder)
    edit(folder, shrink)
    for name in SETS:
        source = write_example(folder / "examples" / name, datasets_of(PARAMS)[name]["form"])
        (folder / "data").mkdir(exist_ok=True)
        shutil.move(source, folder / "data" / name)
    names = (sample.id for sample in open_images(str(folder / "data/imagenet"), split="train").samples)
    (folder / "imagenet-1pct.txt").write_text("\n".join(names))
    run(folder, "git", "init", "-q")
    run(folder, sys.executable, "-m", "dvc", "init", "-q")
    (folder / ".commands").mkdir()
    with beyondcls_in(folder / ".commands"):
        yield folder


@pytest.mark.slow
def test_every_stage_and_every_table(project: Path) -> None:
    """From the images to the pages. Which parameters each stage gets is tested with the recipes."""
    run(project, *DVC, "repro", "table")
    pages = {folder.name: folder / "index.html" for folder in (project / "tables").iterdir() if folder.is_dir()}
    expected = read_params(project / "params.yaml")["tables"]
    assert pages.keys() == expected.keys()
    assert all(page.is_file() for page in pages.values())
    of_coco = json.loads((project / "tables/table-2-coco/metrics.json").read_text())
    assert set(of_coco) == set(ENCODERS)
    assert {tuple(cell) for heads in of_coco.values() for cell in heads.values()} == {("map", "std")}
    of_one_percent = json.loads((project / "tables/table-2-imagenet-1pct/metrics.json").read_text())
    assert {head for heads in of_one_percent.values() for head in heads} == {"cls", "average", "abmilp"}
    with (project / "tables/table-5/tables/variants.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 10
    recipe = json.loads((project / "studies/imagenet/one-percent/mae-b16/cls/metrics.json").read_text())["recipe"]
    assert (recipe["optimiser"], recipe["batch_size"]) == ("sgd", 1024)
    recipe = json.loads((project / "probes/coco/mae-b16/cls/metrics.json").read_text())["recipe"]
    assert (recipe["optimiser"], recipe["batch_size"]) == ("lars", 16384)
