"""The pipeline: its dependencies, and that it runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from webdataset import TarWriter

from extract.datasets import open_images
from tests.machines.machine import QUICK_DVC
from tests.machines.project import leave_out_code
from tests.pipelines.imports import ROOT, STAGES, imported
from tests.pipelines.report.written import write_probe
from tests.test_readme import block


@pytest.mark.parametrize("stage", STAGES)
def test_code_dependencies_are_the_files_that_a_stage_imports(stage):
    described = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]
    deps = described.get("do", described)["deps"]
    listed = [d for d in deps if d.endswith((".py", ".jinja", ".css", ".js")) and not d.startswith("heads/")]
    expected = sorted(imported(STAGES[stage]))
    if stage == "report":
        expected = sorted(
            [
                *expected,
                *(
                    p.relative_to(ROOT).as_posix()
                    for e in ("jinja", "css", "js")
                    for p in (ROOT / "pipelines/report").glob(f"*.{e}")
                ),
            ]
        )
    assert sorted(listed) == expected, "deps of this stage should be:\n" + "\n".join(f"      - {name}" for name in expected)


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"}
    shown = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def repro(folder: Path) -> set[str]:
    """Stages that `dvc repro` ran."""
    return set(re.findall(r"Running stage '([^']+)'", run(folder, sys.executable, "-P", str(QUICK_DVC), "repro")))


def edit(folder: Path, change) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    change(params)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """The pipeline over 96 of the quickstart's images and the random encoder alone."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("dvc.yaml", "params.yaml", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    for split, n in (("train", 64), ("test", 32)):
        source = open_images(str(ROOT / "quickstart/data/cifar10" / split))
        (folder / "data/few" / split).mkdir(parents=True)
        with TarWriter(str(folder / "data/few" / split / "000.tar")) as tar:
            for sample in source.samples[:n]:
                tar.write({"__key__": sample.id, "png": sample.read(), "cls": sample.label})
        shutil.copy(ROOT / "quickstart/data/cifar10" / split / "classes.txt", folder / "data/few" / split)

    def shrink(params):
        params["data"] = "data"
        params["encoders"] = {"quickstart-random": params["encoders"]["quickstart-random"]}
        params["datasets"] = ["few"]
        params["heads"] = {"abmilp": params["heads"]["abmilp"]}
        params["probe"] |= {"epochs": 2, "warmup_epochs": 0, "batch_size": 32}
        params["studies"] = {
            "chosen": {
                "study": "selection",
                "encoder": "quickstart-random",
                "joined": "quickstart-random",
                "heads": {"k-means": {}, "norm": {}},
            }
        }
        params["divergence"] = ["quickstart-random"]
        params["compose"]["n_images"] = 8
        params["other_probes"] = "other"

    write_probe(folder / "other/elsewhere", "quickstart-mae", "abmilp", 51.5)
    edit(folder, shrink)
    leave_out_code(folder)
    run(folder, "git", "init", "-q")
    run(folder, sys.executable, "-m", "dvc", "init", "-q")
    return folder


@pytest.mark.slow
def test_the_whole_pipeline_and_a_new_head(project):
    """Other edits: tests/machines/test_edits.py."""
    everything = {
        "extract@quickstart-random-few-train",
        "extract@quickstart-random-few-test",
        "probe-cls@quickstart-random-few-cls",
        "probe@quickstart-random-few-abmilp",
        "study@chosen",
        "attention@quickstart-random-few",
        "divergence@quickstart-random",
        "compose",
        "extract-composed@quickstart-random",
        "localise@quickstart-random",
        "report",
    }
    assert repro(project) == everything
    assert (project / "report/index.html").exists()
    assert "elsewhere,quickstart-mae" in (project / "report/tables/datasets.csv").read_text()
    assert repro(project) == set()

    # README's own aggregator.
    (project / "heads").mkdir()
    (project / "heads/gem.py").write_text(block("python", "# heads/gem.py"))
    edit(project, lambda params: params.update(yaml.safe_load(block("yaml", "gem:"))))
    of_the_new_head = {"probe-own@quickstart-random-few-gem", "divergence@quickstart-random", "report"}
    assert repro(project) == of_the_new_head
    assert "gem" in (project / "report/tables/accuracy.csv").read_text()
    file = project / "heads/gem.py"
    file.write_text(f"{file.read_text()}\n\nUNUSED = True\n")
    assert repro(project) == {"probe-own@quickstart-random-few-gem"}, "which comes to the same, so nothing follows"
    assert repro(project) == set()

    metrics = run(project, sys.executable, "-m", "dvc", "metrics", "show", "--md")
    for head in ("cls", "abmilp", "gem"):
        assert f"probes/few/quickstart-random/{head}/metrics.json" in metrics
    run(project, sys.executable, "-m", "dvc", "plots", "show", "-o", "plots")
    assert "Top-1 accuracy" in (project / "plots/index.html").read_text()
