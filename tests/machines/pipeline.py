"""The pipeline of dvc.yaml with nothing to compute: its stages, dependencies and outs, and a stand-in for each command.

But for the digests of the code and what params.yaml asks, which are written as ever.
"""

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.machines import project
from tests.machines.machine import DATA

HERE = Path(__file__).parent


def without_computing(tree: Path) -> None:
    """Change a working tree so."""
    shutil.copy(HERE / "stand_in.py", tree)
    described = yaml.safe_load((tree / "dvc.yaml").read_text())
    for name, stage in described["stages"].items():
        if name in project.ALWAYS:
            continue
        body = stage.get("do", stage)
        outs = [path for part in ("outs", "metrics", "plots") for path in map(path_of, body.get(part, ()))]
        # An edit of the code comes to the same; not so images.
        deps = [dep for dep in body["deps"] if not dep.startswith("code/") or dep.startswith("code/data")]
        given = {"params": body.get("params", ()), "deps": deps, "outs": outs}
        arguments = (f"--{name} {' '.join(values)}" for name, values in given.items())
        body["cmd"] = " ".join(["python3 -S -E stand_in.py", *arguments])
    (tree / "dvc.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    for split in project.SPLITS:
        folder = tree / DATA / project.DATASET / split
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "000.tar").write_text(f"photographs of {split}\n")
    (tree / "heads/mine.py").write_text("# a custom head\n")
    for name in ("pairs.csv", "searches.csv", "maps"):
        (tree / name).write_text("what the user wrote\n")
    project.edit(tree, shrink)


def path_of(out: str | dict[str, Any]) -> str:
    return out if isinstance(out, str) else next(iter(out))


def shrink(params: dict[str, Any]) -> None:
    """Two encoders, a study of each, a head of each kind, all else of one, a data set of dense tasks."""
    project.shrink(params)
    params["encoders"][project.RANDOM] = {"model": "dino-s16"}  # of another family than the other one
    params["heads"]["average"] = {"aggregator": "average"}
    params["own_heads"] = {"mine": {"aggregator": "heads/mine.py:Mine"}}
    params["studies"] = {
        study: {"study": study, "dataset": project.DATASET, "encoder": name, "joined": name, "heads": {"norm": {}}}
        for study, name in (("selection", project.MAE), ("variants", project.RANDOM))
    }
    params["divergence"] = {"mae": {"dataset": project.DATASET, "encoder": project.MAE}}
    params["composed"] = {project.DATASET: {"n_images": 8, "seed": 0}}
    params["localised"] = {
        name: {"dataset": project.DATASET, "encoder": name, "features": f"{name}-{project.DATASET}-composed", "head": "abmilp"}
        for name in (project.MAE, project.RANDOM)
    }
    params["geometry"] = {"mae": {"dataset": project.DATASET, "encoder": project.MAE}}
    other = {"dataset": project.DATASET, "encoder": project.MAE, "features": f"{project.MAE}-{project.DATASET}-composed"}
    params["scores"] = {name: {**other, "head": name, "test": "composed"} for name in ("cls", "abmilp")}
    params["correspondence"] = {"mae": {**other, "pairs": "pairs.csv"}}
    params["retrieval"] = {"mae": {**other, "queries": other["features"], "relevant": "searches.csv"}}
    params["tracking"] = {"mae": {**other, "masks": "maps"}}
    params["depth"] = {"mae": {**other, "test": other["features"], "maps": "maps", "test_maps": "maps"}}
    params["composed_dense"] = {"objects": {"photographs": project.DATASET, "train": 8, "test": 4, "seed": 0}}
    objects: dict[str, Any] = {"objects": {}}
    params["dense"] = {"data": "composed", "datasets": objects, "segment": objects, "detect": objects}
