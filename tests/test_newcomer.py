"""What CONTRIBUTING promises: one file and one line add an entry, and the contracts test it. Tried in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_readme import block

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Entry:
    """Something to add.

    Attributes:
        file, content: that are written.
        registry: file with the dictionary.
        imports, line: that are added to it, the line in front of an entry `before`.
        contracts: test files that must test it, by a word in the names of their cases.
    """

    file: str
    content: str
    registry: str
    imports: str
    line: str
    before: str
    contracts: tuple[str, ...]
    word: str


def gem() -> str:
    """README's aggregator, as a file of the package."""
    return block("python", "# heads/gem.py").replace("import beyondcls", OF_THE_PACKAGE).replace("beyondcls.", "")


OF_THE_PACKAGE = "from probe.aggregators.aggregator import Aggregator, Pooled"
STATISTIC = '''"""Attention of the central patch to [cls]."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention, centre
from extract.attention.declared import declares


@declares(highest=lambda n, t: 1, uniform=lambda n, t: 1 / n, of_cls=True, of_all_tokens=True, spatial=True)
def centre_to_cls(attention: Attention) -> Float[Tensor, "B H"]:
    """a[centre, cls]; 0…1. Uniform attention: 1 / N."""
    at = attention.layout.n_prefix + centre(attention.z.shape[-1] - attention.layout.n_prefix)
    return attention.to_cls[..., at] / attention.z[..., at]
'''
ENTRIES = {
    "an aggregator": Entry(
        "probe/aggregators/gem.py",
        gem(),
        "probe/aggregators/__init__.py",
        "from probe.aggregators.gem import GeM",
        '    "gem": GeM,',
        '    "k-means": KMeans,',
        ("tests/contracts/test_aggregators.py",),
        "gem",
    ),
    "an attention statistic": Entry(
        "extract/attention/centre_to_cls.py",
        STATISTIC,
        "extract/attention/__init__.py",
        "from extract.attention.centre_to_cls import centre_to_cls",
        '    "centre_to_cls": centre_to_cls,',
        '    "patches_to_cls": patches_to_cls,',
        ("tests/extract/attention/test_statistics.py",),
        "centre_to_cls",
    ),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all of these entries."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("extract", "probe", "store", "pipelines", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "beyondcls.py"):
        shutil.copy(ROOT / name, folder)
    for entry in ENTRIES.values():
        (folder / entry.file).write_text(entry.content)
        registry = folder / entry.registry
        text = registry.read_text()
        first = re.search(r"^from ", text, re.MULTILINE)
        assert first is not None
        assert entry.before in text
        text = text[: first.start()] + f"{entry.imports}\n" + text[first.start() :]
        registry.write_text(text.replace(entry.before, f"{entry.line}\n{entry.before}"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENTRIES)
def test_one_file_and_one_line(kind: str, tree: Path) -> None:
    entry = ENTRIES[kind]
    assert f"| {kind} | `{Path(entry.file).parent}/<name>.py`" in (ROOT / "CONTRIBUTING.md").read_text()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *entry.contracts, "-k", entry.word]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    shown = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    counted = re.search(r"(\d+) passed", shown.stdout)
    assert counted is not None
    assert int(counted[1]) >= 10, "the contract tests it"
