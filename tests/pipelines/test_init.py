"""Projects in folders of their own: `beyondcls init`, `run` and `demo`."""

import os
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from PIL import Image

from pipelines.demo import CLASSES, N_IMAGES, PARAMS, SIDE, picture
from pipelines.demo import main as demo
from pipelines.init import write_project
from pipelines.parameters.params import read_params
from pipelines.parameters.stages import CHECK, OF_DVC, shipped, stages_of
from pipelines.run_all import main as run
from probe.result_files import read_result
from store import BeyondClsError
from tests.machines.project import ROOT, content, edit
from tests.machines.served import commands_in

EPOCHS = {"seeds": [0, 1], "epochs": 2, "warmup_epochs": 0, "batch_size": 8, "converged": False}

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """24 and 8 pictures of `demo`, in splits that are called train and val."""
    rng = np.random.default_rng(0)
    for split, n in (("train", 24), ("val", 8)):
        for number in range(n):
            file = tmp_path / "pictures" / split / CLASSES[number % 4] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(rng, number % 4, 1.0)).save(file)
    return tmp_path / "pictures"


def both(folder: Path) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Commands by stage in a folder with a pipeline, as the program and as DVC read it."""
    from dvc.repo import Repo

    with Repo.init(str(folder), no_scm=True) as repo:
        stages = {stage.name: stage.cmd for stage in repo.index.stages if stage.name.partition("@")[0] not in OF_DVC}
    lists = {name: command if isinstance(command, list) else [command] for name, command in stages.items()}
    ours = {stage.name: stage.commands for stage in stages_of(read_params(folder / "params.yaml"), folder / "dvc.yaml")}
    return ours, {name: tuple(c for c in commands if c != CHECK) for name, commands in lists.items()}


USERS = """
vars: [more.yaml]
stages:
  listed: { foreach: '${names}', do: { cmd: 'echo ${word} ${item}' } }
  counted: { foreach: [{ x: 1 }, { x: 2 }], do: { cmd: 'echo ${item.x}' } }
"""


@pytest.mark.parametrize("file", ["ours", "a user's"])
def test_stages_are_those_that_dvc_makes_of_the_file(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if file == "ours":
        for name in ("params.yaml", "dvc.yaml"):
            shutil.copy(ROOT / name, tmp_path)
    else:
        for name, text in (("params", "names: [a, b]\n"), ("more", "word: said\n"), ("dvc", USERS)):
            Path(f"{name}.yaml").write_text(text)
    ours, theirs = both(tmp_path)
    assert ours == theirs
    if file != "ours":
        assert list(ours) == ["listed@a", "listed@b", "counted@0", "counted@1"]


def test_what_is_written(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    heads = ["cls", "abmilp", "ap:heads=3", "heads/gem.py:GeM"]
    write_project(folder, images, ["quickstart-random", "mine.py:vit", "transformers:some/model"], heads)
    params = read_params(folder / "params.yaml")
    assert (params["data"], params["datasets"]) == (str(tmp_path), {"pictures": {"test": "val"}})
    named = {"vit": {"model": "mine.py:vit"}, "model": {"model": "transformers:some/model"}}
    assert params["encoders"] == {"quickstart-random": {}, **named}
    assert params["heads"] == {name: {"aggregator": name} for name in heads[:2]} | {
        "ap-heads3": {"aggregator": "ap", "heads": 3},
        "GeM": {"aggregator": "heads/gem.py:GeM"},
    }
    pipeline = yaml.safe_load((folder / "dvc.yaml").read_text())
    code = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["code"]
    assert pipeline["stages"].pop("code") == {**{k: v for k, v in code.items() if k != "deps"}, "always_changed": True}
    assert (folder / ".dvcignore").read_bytes() == (ROOT / ".dvcignore").read_bytes()
    ignored = {line for line in (ROOT / ".gitignore").read_text().splitlines() if line.endswith("/") and line.startswith("/")}
    assert set((folder / ".gitignore").read_text().splitlines()) == ignored - {"/.slurm/", "/.cache/", "/tables/"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": "nowhere"}, r"there is no folder '.*nowhere', expected one with images, in train and test"),
        ({"encoders": ["a.py:vit", "b.py:vit"]}, r"encoders a.py:vit and b.py:vit would both be vit"),
        ({"heads": ["abmlip"]}, r"unknown aggregator 'abmlip'; did you mean 'abmilp'"),
        ({"folder": "pictures/project"}, r"pictures/project is in .*pictures, whose files are the images"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(changed, message: str, images: Path, tmp_path: Path) -> None:
    asked = {"folder": "project", "data": "pictures", "encoders": ["quickstart-random"], "heads": ["cls"], **changed}
    with pytest.raises(BeyondClsError, match=message):
        write_project(tmp_path / asked["folder"], tmp_path / asked["data"], asked["encoders"], asked["heads"])
    assert not (tmp_path / asked["folder"]).exists()


@pytest.mark.parametrize("name", ["dvc.yaml", ".gitignore"])
def test_nothing_is_overwritten(name: str, images: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "project").mkdir()
    if name == ".gitignore":  # a link to someone's file
        (tmp_path / "others").write_text("mine")
        (folder / name).symlink_to(tmp_path / "others")
    else:
        (folder / name).write_text("mine")
    with pytest.raises(BeyondClsError, match=rf"has {name} already; give another folder"):
        write_project(folder, images, ["quickstart-random"], ["cls"])
    assert [file.name for file in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"


def test_in_a_repository_that_is_there(images: Path, tmp_path: Path) -> None:
    """What git and DVC ignore is added to, and only once."""
    write_project(tmp_path / "fresh", images, ["quickstart-random"], ["cls"])
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    (folder / ".gitignore").write_text("/features/\n*.log")
    (folder / ".dvcignore").write_text("# Add patterns of files\n")
    written = write_project(folder, images, ["quickstart-random"], ["cls"])
    assert {file.name for file in written} == {"params.yaml", "dvc.yaml", ".dvcignore", ".gitignore"}
    assert (folder / "README.md").read_text() == "mine"
    for name in (".gitignore", ".dvcignore"):
        own, fresh = ((root / name).read_text().splitlines() for root in (folder, tmp_path / "fresh"))
        assert own[0] == {".gitignore": "/features/", ".dvcignore": "# Add patterns of files"}[name]
        assert {line for line in fresh if line and not line.startswith("#")} <= {*own}
        assert len(own) == len({*own})
    (folder / "params.yaml").unlink()
    (folder / "dvc.yaml").unlink()
    again = write_project(folder, images, ["quickstart-random"], ["cls"])
    assert {file.name for file in again} == {"params.yaml", "dvc.yaml"}


@pytest.mark.slow
def test_dvc_goes_on_from_a_run(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write_project(folder, images, ["quickstart-random"], ["cls", "abmilp"])
    edit(folder, lambda params: params.update(probe=EPOCHS))
    run(folder)
    assert (folder / "report/index.html").is_file()
    results = {name: content(folder / name) for name in ("features", "probes", "attention")}
    assert {f"pictures/quickstart-random/{head}/metrics.json" for head in ("cls", "abmilp")} < {*results["probes"]}
    shutil.rmtree(folder / "probes/pictures/quickstart-random/abmilp")
    with commands_in(tmp_path / "served", ROOT) as served:
        environment = {"PATH": f"{served}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1"}
        for arguments in (["init", "--no-scm", "-q"], ["repro", "-q", "probe", "attention"]):
            subprocess.run([served / "dvc", *arguments], cwd=folder, env=os.environ | environment, check=True)
    noted = {"README.md"}  # of `dvc repro`, in folders of results
    assert results == {name: {f: text for f, text in content(folder / name).items() if f not in noted} for name in results}


def test_a_run_needs_a_project_or_what_makes_one(images: Path, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=r"there is no params.yaml in .*; give --data and --encoder"):
        run(tmp_path, data=images)
    write_project(tmp_path, images, ["quickstart-random"], ["cls"])
    assert read_params(tmp_path / "params.yaml")["data"] == ".", "images in the folder are named from there"
    with pytest.raises(BeyondClsError, match=r"params.yaml says which images, encoders and heads; change it there"):
        run(tmp_path, head=["abmilp"])


def test_pictures_of_no_signal_show_nothing_of_their_class() -> None:
    none, shown = (np.stack([picture(np.random.default_rng(0), k, signal) for k in range(4)]) for signal in (0.0, 1.0))
    assert shown.shape == (len(CLASSES), SIDE, SIDE, 3)
    assert (none == none[0]).all()
    assert len(np.unique(shown, axis=0)) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("one_block")
@pytest.mark.parametrize(("signal", "low", "high"), [(1.0, 60, 100), (0.0, 5, 45)])
def test_the_measures_fall_with_the_signal(signal, low, high, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(N_IMAGES, "train", 200)
    monkeypatch.setitem(N_IMAGES, "test", 100)
    monkeypatch.setattr("pipelines.demo.PARAMS", PARAMS.replace("seeds: [0, 1, 2]", "seeds: [0]\n  converged: false"))
    monkeypatch.setattr("pipelines.run_all.subprocess", Mock())  # which writes digests of code, for DVC
    demo(tmp_path / "demo", signal, seed=0)
    for head in ("cls", "average", "abmilp"):
        metrics = read_result(tmp_path / f"demo/probes/images/random-vit/{head}/metrics.json")
        assert low <= metrics["top1"]["mean"] <= high, head
    assert "Top-1 accuracy" in capsys.readouterr().out
    assert (tmp_path / "demo/report/index.html").is_file()
    with pytest.raises(BeyondClsError, match="demo exists already"):
        demo(tmp_path / "demo", signal, seed=0)


def test_the_pipeline_is_shipped() -> None:
    assert shipped("dvc.yaml") == ROOT / "dvc.yaml"
    with pytest.raises(BeyondClsError, match=r"this installation has no share/beyondcls/other.yaml"):
        shipped("other.yaml")
