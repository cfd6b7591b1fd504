"""What README and the documentation say is so: their commands and their Python run, in the order of the pages; links lead somewhere."""

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import yaml
import zarr
from safetensors.torch import load_file

from extract.datasets import ImageSet, open_images
from extract.encoders import ENCODERS, load_encoder
from extract.encoders.pretrained import timm_model
from extract.run import extract
from probe.grid import HeadPlan
from probe.recipe import Recipe
from probe.run import probe
from store import FeatureStore
from tests.extract.datasets.test_published import cub
from tests.extract.pictures import samples, write_tar
from tests.pipelines.test_cli import run

ROOT = Path(__file__).resolve().parents[1]
TOCTREE = re.findall(r"^([a-z-]+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
PAGES = ["README.md", *(f"docs/{name}.md" for name in TOCTREE if name != "cli")]
GEM = "probes/cifar10/quickstart-mae/gem"
# What is no command of this program; what these do is tested where they are used (tests/machines, tests/test_install.py).
OTHERS = ("pip", "make", "dvc", "git")


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: str
    language: str
    text: str

    def commands(self) -> list[list[str]]:
        """Words of each command in a block of a shell."""
        lines = self.text.replace("\\\n", "").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [Block(page, language, text) for language, text in found]


def block(language: str, part: str) -> str:
    """The one block of all pages that has this part."""
    (found,) = {b.text for page in PAGES for b in blocks(page) if b.language == language and part in b.text}
    return found


COMMANDS = [(page, " ".join(words)) for page in PAGES for b in blocks(page) if b.language == "sh" for words in b.commands()]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Path]:
    """A folder with some photographs, and some of the quickstart's features; encoders of the paper's sizes are small ones."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "quickstart").symlink_to(ROOT / "quickstart")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["probe"] |= {"epochs": 1, "warmup_epochs": 0}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(ENCODERS, "mae-b16", replace(ENCODERS["quickstart-mae"], model="quickstart-vit"))
        torch.save(timm_model("vit_small_patch16_224").state_dict(), "mine.pth")
        cub(folder)
        for shard in range(2):
            write_tar(Path(f"train-{shard:03d}.tar"), samples(8, first=8 * shard))
        Path("heads").mkdir()
        Path("heads/gem.py").write_text(block("python", "# heads/gem.py"))
        for split, n in (("train", 96), ("test", 32)):
            data = open_images(f"quickstart/data/cifar10/{split}")
            save(data, {"train": "train", "test": "val"}[split])
            some = ImageSet(split, data.samples[:n], data.classes)
            extract(load_encoder("quickstart-mae"), some, folder / f"features/quickstart-mae-cifar10-{split}", statistics=())
        sets = [FeatureStore.open(f"features/quickstart-mae-cifar10-{split}") for split in ("train", "test")]
        plan = HeadPlan(recipe=Recipe(epochs=1, warmup_epochs=0), seeds=(0,))
        probe(sets[0], sets[1], folder / "probes/cifar10/quickstart-mae/abmilp", plan)
        yield folder


def save(data: ImageSet, folder: str) -> None:
    """Cats and dogs among the first images, in a folder each, and one of each above."""
    for name in ("cat", "dog"):
        label = list(data.classes).index(name)
        rows = [row for row, sample in enumerate(data.samples) if sample.label == label][:24]
        Path("photos", folder, name).mkdir(parents=True)
        for row in rows:
            data.image(row).save(f"photos/{folder}/{name}/{row}.png")
        data.image(rows[0]).save(f"photos/{name}.png")


@pytest.fixture
def in_project(project, monkeypatch) -> Path:
    monkeypatch.chdir(project)
    return project


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_run(page, command, in_project, monkeypatch, capsys):
    words = shlex.split(command)
    if words[0] in OTHERS:
        return
    assert words[0] == "beyondcls"
    status, out, err = run(monkeypatch, capsys, *words[1:])
    assert status == 0, out + err
