"""What README says is so: its Python runs, its commands and options exist, its files are there."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
import zarr
from safetensors.torch import load_file

from extract.datasets import ImageSet, open_images
from extract.encoders import load_encoder
from extract.run import extract
from pipelines.cli import app
from probe.grid import HeadPlan
from probe.recipe import Recipe
from probe.run import probe
from store import FeatureStore
from tests.pipelines.test_cli import run

ROOT = Path(__file__).resolve().parents[1]
GEM = "probes/cifar10/quickstart-mae/gem"
README = (ROOT / "README.md").read_text()
COMMANDS = [line.split("#")[0].strip() for line in README.replace("\\\n", "").splitlines() if line.startswith("beyondcls ")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def block(language: str, part: str) -> str:
    """The one block that has this part."""
    (found,) = (text for text in blocks(language) if part in text)
    return found


def command(part: str) -> list[str]:
    """Arguments of the one command that has this part."""
    (found,) = (line for line in COMMANDS if part in line)
    return shlex.split(found)[1:]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Path:
    """A folder where some of the quickstart's images were extracted, and a few lie in `photos`."""
    folder = tmp_path_factory.mktemp("quickstart")
    (folder / "quickstart").symlink_to(ROOT / "quickstart")
    (folder / "photos").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for split, n in (("train", 96), ("test", 32)):
            data = open_images(f"quickstart/data/cifar10/{split}")
            for name, row in (("cat", 3), ("dog", 5)):
                data.image(row).save(f"photos/{name}.png")
            some = ImageSet(split, data.samples[:n], data.classes)
            extract(load_encoder("quickstart-mae"), some, folder / f"features/quickstart-mae-cifar10-{split}", statistics=())
        sets = [FeatureStore.open(f"features/quickstart-mae-cifar10-{split}") for split in ("train", "test")]
        plan = HeadPlan(recipe=Recipe(epochs=1, warmup_epochs=0), seeds=(0,))
        probe(sets[0], sets[1], folder / "probes/cifar10/quickstart-mae/abmilp", plan)
    return folder


def test_python_runs(quickstart, monkeypatch):
    monkeypatch.chdir(quickstart)
    done: dict[str, dict] = {}
    for text in blocks("python"):
        if not text.startswith("# heads/gem.py"):
            exec(text, done.setdefault(text, {}))
    reading, using, training = done.values()
    assert reading["patch"].shape == (3, 64, 192)
    assert reading["head"].classifier.out_features == 10
    assert using["logits"].shape == (2, 10)
    assert using["attention"].shape == (2, 8, 8)
    assert training["patch"].shape == (96, 64, 192)
    assert training["loader"].reason.startswith("memory: ")
    array = re.search(r'zarr\.open_group\("(.*?)"\)\["(.*?)"\]', README)
    assert array is not None
    assert zarr.open_group(array[1])[array[2]].shape[0] == 32


def test_prediction_runs(quickstart, monkeypatch, capsys):
    monkeypatch.chdir(quickstart)
    status, out, err = run(monkeypatch, capsys, *command("--overlays look"))
    assert status == 0, err
    assert [line for line in out.splitlines() if not line.startswith(" ")] == ["photos/cat.png", "photos/dog.png"]
    assert len(list((quickstart / "look").iterdir())) == 4


def test_the_aggregator_trains_and_predicts(quickstart, monkeypatch, capsys):
    monkeypatch.chdir(quickstart)
    Path("heads").mkdir()
    Path("heads/gem.py").write_text(block("python", "# heads/gem.py"))
    entry = yaml.safe_load(block("yaml", "gem:"))
    Path("params.yaml").write_text(yaml.safe_dump(entry | {"probe": {"epochs": 2, "warmup_epochs": 0, "seeds": [0, 1]}}))
    by_name = [*command("--option p=4.0"), "--params", "params.yaml", "--head", "gem"]
    for option in ("--option", "p=4.0", "--head", "heads/gem.py:GeM"):
        by_name.remove(option)
    status, out, err = run(monkeypatch, capsys, *[a.replace("probes/gem", GEM) for a in by_name])
    assert status == 0, err
    trained = load_file(f"{GEM}/trained/seed0.safetensors")["aggregator.p"].item()
    assert trained == pytest.approx(4.0, abs=1)
    assert trained != 4.0
    status, out, err = run(monkeypatch, capsys, *command("--own"))
    assert status == 0, err
    assert out.count(" % ") == 10
    arguments = [*command("--option p=4.0"), "--epochs", "2", "--warmup-epochs", "0", "--seeds", "0,1"]
    status, out, err = run(monkeypatch, capsys, *arguments)
    assert status == 0, err
    assert load_file("probes/gem/trained/seed0.safetensors")["aggregator.p"].item() == trained


def test_there_are_commands():
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_options_exist(command):
    group = typer.main.get_command(app)
    _, name, *arguments = shlex.split(command)
    known = {option for parameter in group.commands[name].params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_make_targets_and_linked_files_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_ci_runs_the_test_command_of_the_readme():
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("\nmake test")
