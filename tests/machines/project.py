"""A small project on two machines: some of the quickstart's images, two encoders, heads that read [cls] or patch tokens."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.machines.machine import DATA, ENCODERS, IMAGE_PACKAGES, Machine, git

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ("train", "test")
MAE, RANDOM = "quickstart-mae", "quickstart-random"
DATASET = "cifar10"
CODE = {"code", f"code-data@{DATASET}", "recipes"}  # stages
ALWAYS = ("code", "code-data", "code-dense", "recipes")
GROUPS = {"cls": "probe-cls", "mine": "probe-own"}  # stages of heads in other groups


def extract_stage(encoder: str, split: str) -> str:
    return f"extract@{encoder}-{DATASET}-{split}"


def feature_folder(encoder: str, split: str) -> str:
    return f"features/{encoder}-{DATASET}-{split}"


def probe_stage(head: str, encoder: str = MAE) -> str:
    """Stages are named after what a head reads; see params.yaml."""
    return f"{GROUPS.get(head, 'probe')}@{encoder}-{DATASET}-{head}"


def probe_folder(head: str, encoder: str = MAE) -> str:
    return f"probes/{DATASET}/{encoder}/{head}"


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder, except files of DVC's, and those that it ignores."""
    unseen = (".gitignore", "timing.json")
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file() and f.name not in unseen}


class Written(yaml.SafeDumper):
    """Writes values in full where YAML would use an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change params.yaml."""
    params = yaml.safe_load((folder / "params.yaml").read_text())
    change(params)
    (folder / "params.yaml").write_text(yaml.dump(params, Dumper=Written, sort_keys=False))


def shrink(params: dict[str, Any]) -> None:
    params["encoders"] = {name: params["encoders"][name] for name in (MAE, RANDOM)}
    params["cls_heads"], params["heads"] = (
        {name: params[group][name]} for group, name in (("cls_heads", "cls"), ("heads", "abmilp"))
    )
    for grids in (params["probe"], params["cls_heads"]["cls"], params["heads"]["abmilp"]):
        for name in ("base_lrs", "weight_decays", "epochs"):
            grids.pop(name, None)
    params["probe"] |= {"seeds": [0, 1], "epochs": 2, "warmup_epochs": 0, "batch_size": 32}
    params["extract"]["shard_rows"] = 32
    sections = ("block_studies", "by_block", "divergence", "composed", "whole", "localised", "dense", "composed_dense")
    params |= {name: {} for name in ("studies", "few_shot", "geometry", "similarity", "norms", *sections)}


def without_code(stages: Iterable[str]) -> set[str]:
    """Stages except those that digest the code or resolve params.yaml, which take a second."""
    return {stage for stage in stages if stage.partition("@")[0] not in ALWAYS}


def keep_stages(folder: Path, kept: Sequence[str]) -> None:
    """Leave only these stages in dvc.yaml, and those that digest their code or resolve what is asked of them."""
    described = yaml.safe_load((folder / "dvc.yaml").read_text())
    stages, needed = described["stages"], list(kept)
    for name in needed:  # the list grows meanwhile
        for dep in stages[name]["deps"]:
            made = (other for other, stage in stages.items() if other in ALWAYS and dep.startswith(tuple(stage["outs"])))
            needed += [other for other in made if other not in needed]
    described["stages"] = {name: stage for name, stage in stages.items() if name in needed}
    (folder / "dvc.yaml").write_text(yaml.safe_dump(described, sort_keys=False))


def small_origin(folder: Path, stages: Sequence[str], n_train: int = 96, n_test: int = 32) -> Path:
    """A bare repository with the working tree as it is now, reduced to a few images and these stages."""

    def small(tree: Path) -> None:
        for split, n in zip(SPLITS, (n_train, n_test), strict=True):
            few_images(tree / DATA / DATASET / split, n)
        edit(tree, shrink)
        keep_stages(tree, stages)

    return origin(folder, small)


def origin(folder: Path, change: Callable[[Path], object] | None = None) -> Path:
    """A bare repository with the working tree as it is now, changed by `change`."""
    tree = folder / "tree"
    for name in working_tree(ROOT):
        if not name.startswith(("tests/", "benchmarks/", "docs/")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    if change:
        change(tree)
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", "--all")
    git(tree, "commit", "-q", "-m", "Working tree under test")
    bare = folder / "origin.git"
    git(folder, "clone", "-q", "--bare", str(tree), str(bare))
    return bare


def working_tree(root: Path) -> list[str]:
    """Files of a clone, new ones included, without outputs of a pipeline: what git ignores, and dvc.lock."""
    names = git(root, "ls-files", "-co", "--exclude-standard").splitlines()
    return [name for name in names if name != "dvc.lock" and (root / name).is_file()]


def few_images(folder: Path, n: int) -> None:
    """Keep the first `n` images of a folder of tars, in one tar."""
    from webdataset import TarWriter

    from extract.datasets import open_images

    samples = open_images(str(folder)).samples[:n]
    with TarWriter(str(folder / "few.tar")) as tar:
        for sample in samples:
            tar.write({"__key__": sample.id, "png": sample.read(), "cls": sample.label})
    for file in folder.glob("0*.tar"):
        file.unlink()
    (folder / "few.tar").rename(folder / "000.tar")


def machine_a(folder: Path, bare: Path, served: Path | None = None) -> Machine:
    """Extracts: has images, encoders and all packages."""
    return Machine.cloned(folder, bare, served=served)


def machine_b(folder: Path, bare: Path, served: Path | None = None) -> Machine:
    """Probes: has neither images nor encoders nor what reads them."""
    return Machine.cloned(folder, bare, without=IMAGE_PACKAGES, lacks=(DATA, ENCODERS), served=served)
