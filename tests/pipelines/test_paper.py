"""The whole paper as one project: paper/params.yaml, on a few fabricated images and tiny encoders."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extract.datasets import DATASETS
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
# One of each kind: [cls]; none; registers in its place; another block; 50 epochs; joint embedding; fine-tuned.
ENCODERS = ("mae-b16", "ijepa-h14", "simmim-b16", "dino-b16")
TINY = {"depth": 9, "embed_dim": 24, "num_heads": 2}


class TestParameters:
    @pytest.mark.parametrize("name", studies_of(PARAMS))
    def test_studies_can_be_made(self, name: str) -> None:
        entry = studies_of(PARAMS)[name][1]
        plans, _ = plans_of_study(PARAMS, name, encoder=entry["encoder"], dataset=entry["dataset"])
        assert plans
        assert {entry["encoder"], entry.get("joined", entry["encoder"])} <= set(PARAMS["encoders"])

    def test_all_tables_have_their_stage(self) -> None:
        published = {f"table-{n}" for n in (1, 3, 5, 6, 7, 8)}
        assert published <= set(PARAMS["tables"])

    def test_data_sets_are_read_by_their_own_form(self) -> None:
        assert {values["form"] for values in datasets_of(PARAMS).values()} <= set(DATASETS)


def shrink(params: dict[str, Any]) -> None:
    """The same project with sizes overridden."""
    params["encoders"] = {
        name: {**params["encoders"][name], "random_seed": 0, "arguments": TINY, "batch_size": 8} for name in ENCODERS
    }
    for values in params["datasets"].values():
        values |= {"epochs": 1, "warmup_epochs": 0, "batch_size": 4}
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
    for name, values in datasets_of(PARAMS).items():
        source = write_example(folder / "examples" / name, values["form"])
        (folder / "data").mkdir(exist_ok=True)
        shutil.move(source, folder / "data" / name)
    run(folder, "git", "init", "-q")
    run(folder, sys.executable, "-m", "dvc", "init", "-q")
    (folder / ".commands").mkdir()
    with beyondcls_in(folder / ".commands"):
        yield folder
