"""What README and the documentation say is so: its commands and its Python run in their order, and links lead somewhere."""

import inspect
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
import zarr
from PIL import Image
from safetensors.torch import load_file

import beyondcls
from extract.attention import PER_BLOCK, STATISTICS
from extract.datasets import ImageSet, open_images
from extract.encoders import ENCODERS, load_encoder
from extract.encoders.pretrained import timm_model
from extract.run import extract
from pipelines import cli
from pipelines.report import drawing
from pipelines.report.attention_statistics import in_order
from probe.grid import HeadPlan
from probe.recipe import PRESETS, Recipe
from probe.retrieval import Search
from probe.run import probe
from store import FeatureStore
from tests.extract.pictures import samples, write_example, write_pictures, write_tar
from tests.pipelines.test_depth import nyu
from tests.probe.navi import navi
from tests.probe.test_retrieval import roxford

ROOT = Path(__file__).resolve().parents[1]
TOCTREE = re.findall(r"^([a-z-]+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
PAGES = ["README.md", *(f"docs/{name}.md" for name in TOCTREE if name != "cli")]
WRITTEN = (
    ROOT / "docs/cli.md",
    *(script.with_suffix(".md") for script in (ROOT / "docs/gallery").glob("*.py")),
)  # by docs/conf.py
# What is not a command of this program; what these do is tested where they are used (tests/machines, tests/test_install.py).
OTHERS = ("pip", "make", "dvc", "git")
FILES = ("# heads/gem.py", "# mine.py", "# photographs.py")  # blocks that are files
PYTHON = (
    ("README.md", 'open_store("features/mae-val")'),
    ("docs/using-a-probe.md", "online("),
    ("docs/store.md", "beyondcls.Loader("),
)


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


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    matches = re.findall(r"^```(\w+)\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    return [Block(page, language, text) for language, text in matches]


def block(language: str, part: str) -> str:
    """The one block of all pages that has this part."""
    (text,) = {b.text for page in PAGES for b in blocks(page) if b.language == language and part in b.text}
    return text


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Path]:
    """A folder with some photographs, and some of the quickstart's features; encoders of the paper's sizes are small ones."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "quickstart").symlink_to(ROOT / "quickstart")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["probe"] |= {"epochs": 1, "warmup_epochs": 0, "seeds": [0], "base_lrs": [0.1, 0.3]}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(ENCODERS, "mae-b16", replace(ENCODERS["quickstart-mae"], model="quickstart-vit"))
        torch.save(timm_model("vit_small_patch16_224").state_dict(), "mine.pth")
        write_example(folder, "cub")
        write_example(folder / "CamVid", "camvid")
        nyu(folder / "nyu")
        navi(folder / "navi")
        roxford(folder / "roxford5k", Search(["query", "other"], [{"easy": ["000000"]}] * 2))
        write_pictures(folder / "roxford5k/jpg", "query.jpg", "other.jpg")
        for shard in range(2):
            write_tar(Path(f"train-{shard:03d}.tar"), samples(8, first=8 * shard))
        Path("heads").mkdir()
        for name in FILES:
            Path(name.removeprefix("# ")).write_text(block("python", name + "\n"))
        patch.syspath_prepend(folder)
        for split, n in (("train", 96), ("test", 32)):
            data = open_images(f"quickstart/data/cifar10/{split}")
            save(data, {"train": "train", "test": "val"}[split])
            first_images = ImageSet(split, data.samples[:n], data.classes)
            extract(
                load_encoder("quickstart-mae"), first_images, folder / f"features/quickstart-mae-cifar10-{split}", statistics=()
            )
        sets = [FeatureStore.open(f"features/quickstart-mae-cifar10-{split}") for split in ("train", "test")]
        plan = HeadPlan(recipe=Recipe(epochs=1, warmup_epochs=0), seeds=(0,))
        probe(sets[0], sets[1], folder / "probes/cifar10/quickstart-mae/abmilp", plan)
        yield folder


def save(data: ImageSet, folder: str) -> None:
    """Cats and dogs among the first images, in a folder each, and one of each above."""
    for name in ("cat", "dog"):
        label = list(data.classes).index(name)
        rows = [row for row, sample in enumerate(data.samples) if sample.label == label][:12]
        Path("photos", folder, name).mkdir(parents=True)
        for row in rows:
            data.image(row).save(f"photos/{folder}/{name}/{row}.png")
        data.image(rows[0]).save(f"photos/{name}.png")


@dataclass(frozen=True)
class Outcome:
    """What a command said, or the variables of a block of Python."""

    status: int = 0
    out: str = ""
    err: str = ""
    variables: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def outcomes(project: Path) -> dict[tuple[str, str], Outcome]:
    """Of all pages in their order, by page and text: later commands use what earlier ones made."""
    by_block: dict[tuple[str, str], Outcome] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setattr(drawing, "_save", lambda *_, **__: b"<svg></svg>")  # plots stay empty
        for name in ("", "small-sgd"):  # without a preset, too
            patch.setitem(PRESETS, name, PRESETS.get(name, {}) | {"epochs": 2, "warmup_epochs": 1})
        for b in (b for page in PAGES for b in blocks(page)):
            if b.language == "python" and not b.text.startswith(FILES):
                by_block[b.page, b.text] = executed(b.text)
            for words in b.commands() if b.language == "sh" else ():
                if words[0] not in OTHERS:
                    by_block[b.page, shlex.join(words)] = called(words, patch)
    return by_block


def executed(text: str) -> Outcome:
    variables: dict[str, Any] = {}
    exec(text, variables)
    return Outcome(variables=variables)


def called(words: list[str], patch: pytest.MonkeyPatch) -> Outcome:
    """In this process, as the terminal would show it."""
    patch.setattr("sys.argv", words)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            cli.run()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Outcome(status, out.getvalue(), err.getvalue())


@pytest.mark.slow
def test_commands_run(outcomes):
    assert {key: outcome.out + outcome.err for key, outcome in outcomes.items() if outcome.status} == {}


@pytest.mark.slow
def test_python_runs(project, outcomes):
    store, using, training = (outcomes[page, block("python", part)].variables for page, part in PYTHON)
    assert store["patch"].shape == (3, 64, 192)
    assert store["head"].classifier.out_features == 2
    assert using["logits"].shape == (2, 10)
    assert using["attention"].shape == (2, 8, 8)
    assert training["patch"].shape == (96, 64, 192)
    assert training["loader"].reason.startswith("memory: ")
    assert Image.open(project / "nyu/images/test/0009.png").size == (40, 30)
    assert Image.open(project / "roxford5k/queries/query.png").size == (29, 38)


@pytest.mark.slow
def test_predictions_say_what_the_page_says(project, outcomes):
    (command,) = (o for (page, text), o in outcomes.items() if "--overlays look" in text)
    images = [path.relative_to(project).as_posix() for path in sorted(project.glob("photos/**/*.png"))]
    assert sorted(line for line in command.out.splitlines() if not line.startswith(" ")) == sorted(images)
    assert len(list((project / "look").iterdir())) == 2 * len(images)


@pytest.mark.slow
def test_an_option_of_an_aggregator_of_ones_own_arrives(project, outcomes):
    trained = load_file(project / "probes/gem/trained/seed0.safetensors")["aggregator.p"].item()
    assert trained == pytest.approx(4.0, abs=1)
    assert trained != 4.0


@pytest.mark.slow
def test_any_reader_of_zarr_opens_a_set(project, outcomes):
    (opened,) = {match for page in PAGES for match in re.findall(r'zarr\.open_group\("(.*?)"\)\["(.*?)"\]', text_of(page))}
    assert zarr.open_group(project / opened[0])[opened[1]].shape[0] == 32


@pytest.mark.parametrize("page", PAGES)
class TestEveryPage:
    def test_parameters_are_yaml(self, page):
        for b in blocks(page):
            if b.language == "yaml":
                assert isinstance(yaml.safe_load(b.text), dict), b.text

    def test_links_lead_somewhere(self, page):
        for link in re.findall(r"\]\((?!http)([^)#]*)(?:#[^)]*)?\)", text_of(page)):
            target = (ROOT / page).parent / link
            assert not link or target.exists() or target in WRITTEN, link

    def test_commands_of_other_programs_are_there(self, page):
        makefile = (ROOT / "Makefile").read_text()
        for words in (words for b in blocks(page) if b.language == "sh" for words in b.commands()):
            assert words[0] in (*OTHERS, "beyondcls")
            assert words[0] != "make" or f"\n{words[1]}:" in makefile


def test_every_page_is_in_the_table_of_contents():
    written = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index", "cli"}
    assert written | {"cli"} == set(TOCTREE)


def test_ci_runs_the_test_command_of_the_readme():
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("\nmake test")


def test_every_attention_statistic_is_defined():
    _, _, section = text_of("docs/report.md").partition("## Attention statistics")
    assert re.findall(r"^\| `(\w+)` \|", section.partition("\n## ")[0], re.MULTILINE) == [
        *in_order(STATISTICS),
        *PER_BLOCK,
    ]


def in_short(name: str) -> str:
    """A public name as the overview of docs/python.md has it: how it is called, and the first line of its description."""
    value = getattr(beyondcls, name)
    if not callable(value):
        return f"| `{name}` | names and entries of the registry |"
    is_error = isinstance(value, type) and issubclass(value, Exception)
    parameters = [] if is_error else [p.name for p in inspect.signature(value).parameters.values() if p.default is p.empty]
    called = name if is_error else f"{name}({', '.join([*parameters, '…'])})"
    line = inspect.cleandoc(value.__doc__).partition("\n")[0].replace("|", "\\|")
    return f"| `{called}` | {line} |"


def test_public_names_are_listed_where_nothing_is_built():
    rows = [line for line in text_of("docs/python.md").splitlines() if line.startswith("| `")]
    assert rows == [in_short(name) for name in sorted(beyondcls.__all__, key=str.lower)]
