"""The pipeline: its dependencies, and that it runs."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from webdataset import TarWriter

from extract.datasets import open_images
from tests.machines.project import ROOT, edit
from tests.machines.served import commands_in
from tests.pipelines.report.written import write_probe
from tests.test_docs import FILES, block


def run(folder: Path, *command: str) -> str:
    """What a command says that runs the project's own code."""
    path = f"{folder / '.commands'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "1"}
    shown = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def repro(folder: Path) -> set[str]:
    """Stages that `dvc repro` ran."""
    return set(re.findall(r"Running stage '([^']+)'", run(folder, "dvc", "repro")))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Path]:
    """The pipeline over 124 of the quickstart's images and the random encoder alone."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("beyondcls", "store", "extract", "probe", "pipelines", "heads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "pipelines/report/drawing.py").open("a") as drawing:  # as `no_plots`: nobody looks at them here
        drawing.write('\n\ndef _save(*_, **__):\n    return b"<svg></svg>"\n')
    for name in ("dvc.yaml", "params.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(ROOT / name, folder)
    weights = Path("quickstart/encoders/random.safetensors")
    (folder / weights).parent.mkdir(parents=True)
    shutil.copy(ROOT / weights, folder / weights)
    for split, n in (("train", 64), ("test", 60)):
        source = open_images(str(ROOT / "quickstart/data/cifar10" / split))
        (folder / "data/few" / split).mkdir(parents=True)
        with TarWriter(str(folder / "data/few" / split / "000.tar")) as tar:
            for sample in source.samples[:n]:
                tar.write({"__key__": sample.id, "png": sample.read(), "cls": sample.label})
        shutil.copy(ROOT / "quickstart/data/cifar10" / split / "classes.txt", folder / "data/few" / split)

    ids = [sample.id for sample in source.samples[:60]]
    order = np.random.default_rng(0).permutation(60)[:8]  # of the photographs that are composed
    one, other = (ids[row] for row in order[:2])
    (folder / "data/searches.csv").write_text(f"query,image\n{one},{other}\n{other},{one}\n")
    (folder / "data/depth").mkdir()
    for name in (ids[row] for row in order):
        np.save(folder / f"data/depth/{name}.npy", np.full((64, 64), 2, np.float32))
    points = "source,target,x,y,target_x,target_y,size\n"
    (folder / "data/pairs.csv").write_text(f"{points}{one},{other},30,30,30,30,32\n")

    def shrink(params):
        params["data"] = "data"
        params["encoders"] = {"quickstart-random": params["encoders"]["quickstart-random"]}
        params["datasets"] = ["few"]
        params["heads"] = {"abmilp": params["heads"]["abmilp"]}
        for head in (params["cls_heads"]["cls"], *params["heads"].values()):
            head |= {"epochs": 2, "base_lrs": head["base_lrs"][:2], "weight_decays": head["weight_decays"][:2]}
        params["probe"] |= {"seeds": [0, 1], "epochs": 2, "warmup_epochs": 0, "batch_size": 32, "converged": False}
        params["extract"]["statistics"] = ["cls_self", "cls_patch_entropy"]
        alone = {"encoder": "quickstart-random", "dataset": "few"}
        heads = {"k-means": {}, "norm": {}}
        params["studies"] = {"chosen": {"study": "selection", **alone, "joined": "quickstart-random", "heads": heads}}
        heads = {"abmilp": {}, "both": {"aggregator": "abmilp", "blocks": [1, 5]}}
        params["block_studies"] = {"deep": {"study": "blocks", **alone, "stored": "1,-1", "heads": heads}}
        params["divergence"] = params["few_shot"] = params["norms"] = {"random": alone}
        composed = {**alone, "features": "quickstart-random-few-composed"}
        again = {"test": "again", "features": "quickstart-random-few-test"}
        params["scores"] = {"random": {**alone, "head": "abmilp", **again}}
        params["correspondence"] = {"random": {**composed, "pairs": "data/pairs.csv"}}
        same = {"queries": composed["features"], "relevant": "data/searches.csv"}
        params["retrieval"] = {"random": {**composed, **same}}
        maps = {"maps": "data/depth", "test": composed["features"], "test_maps": "data/depth"}
        params["depth"] = {"random": {**composed, **maps, "epochs": 1, "seeds": [3], "batch_size": 4}}
        params["geometry"] = {"random": {**alone, "images": 55}}
        params["similarity"] = {"itself": {**alone, "joined": "quickstart-random"}}
        params["composed"] = {"few": {"n_images": 8, "seed": 0}}
        params["localised"] = {"random": {**alone, "features": "quickstart-random-few-composed", "head": "abmilp"}}
        params["composed_dense"] = {"objects": {"photographs": "few", "train": 16, "test": 8, "seed": 0}}
        params["dense"]["segment"]["objects"] = {"protocol": ["linear"], "base_lrs": [0.5], "epochs": 2, "seeds": [0]}
        params["dense"]["detect"]["objects"] |= {"epochs": 1, "width": 8, "box_features": 16}
        params["other_probes"] = params["other_studies"] = "other"

    write_probe(folder / "other/elsewhere", "quickstart-mae", "abmilp", 51.5)
    edit(folder, shrink)
    run(folder, "git", "init", "-q")
    with commands_in(folder / ".commands"):
        run(folder, "dvc", "init", "-q")
        yield folder


@pytest.mark.slow
def test_the_whole_pipeline_and_a_new_head(project):
    """Other edits: tests/machines/test_edits.py."""
    assert repro(project) == set(run(project, "dvc", "stage", "list", "--all", "--name-only").split())
    assert (project / "report/index.html").exists()
    assert (project / "report/tables/study-blocks-gains.csv").is_file(), "what the study of blocks found"
    assert '"n_images": 55' in (project / "geometry/few/quickstart-random/description.json").read_text()
    for table in ("few-shot", "geometry", "norms", "scores", "correspondence", "retrieval", "depth"):
        assert "quickstart-random" in (project / f"report/tables/{table}.csv").read_text()
    assert (project / "similarity/few/itself/metrics.json").is_file()
    assert "elsewhere,quickstart-mae" in (project / "report/tables/datasets.csv").read_text()

    # The aggregator of the documentation.
    (project / "heads/gem.py").write_text(block("python", FILES[0]))
    edit(project, lambda params: params["heads"].update(yaml.safe_load(block("yaml", "gem:"))["heads"]))
    of_the_new_head = {"code", "probe@quickstart-random-few-gem", "divergence@random", "norms@random", "report"}
    ran = repro(project)
    assert ran >= of_the_new_head
    before_heads = ("extract", "probe", "study", "attention", "compose", "localise")
    assert not [stage for stage in ran - of_the_new_head if stage.startswith(before_heads)], "only what reads heads follows"
    assert "gem" in (project / "report/tables/accuracy.csv").read_text()
    file = project / "heads/gem.py"
    file.write_text(f"{file.read_text()}\n\nUNUSED = True\n")
    assert repro(project) == of_the_new_head, "its record says what it was trained from; what reads it follows"

    metrics = run(project, "dvc", "metrics", "show", "--md")
    for head in ("cls", "abmilp", "gem"):
        assert f"probes/few/quickstart-random/{head}/metrics.json" in metrics
    for task in ("segmentation", "detection"):
        assert f"{task}/objects/quickstart-random/metrics.json" in metrics
    run(project, "dvc", "plots", "show", "-o", "plots")
    shown = (project / "plots/index.html").read_text()
    assert all(title in shown for title in ("Top-1 accuracy", "Loss of the linear head", "Loss of the detector"))
