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
        file: is written, with the content of the file of the same name in tests/newcomers.
        registry: file with the dictionary.
        line: is added to it, in front of `before`, which is there.
        imports: too.
        contract: test file that must test it, without a change.
        word: in the names of the contract's cases of it.
    """

    file: str
    registry: str
    line: str
    before: str
    imports: str
    contract: str
    word: str

    @property
    def content(self) -> str:
        """README's aggregator, as a file of the package, or a file of this folder."""
        if self.word != "gem":
            return (ROOT / "tests/newcomers" / Path(self.file).name).read_text()
        imports = "from probe.aggregators.aggregator import Aggregator, Pooled"
        return block("python", "# heads/gem.py").replace("import beyondcls", imports).replace("beyondcls.", "")


ENTRIES = {
    "an aggregator": Entry(
        file="probe/aggregators/gem.py",
        registry="probe/aggregators/__init__.py",
        line='    "gem": GeM,',
        before='    "k-means": KMeans,',
        imports="from probe.aggregators.gem import GeM",
        contract="tests/contracts/test_aggregators.py",
        word="gem",
    ),
    "an attention statistic": Entry(
        file="extract/attention/centre_to_cls.py",
        registry="extract/attention/__init__.py",
        line='    "centre_to_cls": centre_to_cls,',
        before='    "patches_to_cls": patches_to_cls,',
        imports="from extract.attention.centre_to_cls import centre_to_cls",
        contract="tests/extract/attention/test_statistics.py",
        word="centre_to_cls",
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
        assert not (folder / entry.file).exists()
        (folder / entry.file).write_text(entry.content)
        registry = folder / entry.registry
        text = registry.read_text()
        first = re.search(r"^from ", text, re.MULTILINE)
        assert first is not None
        assert text.count(entry.before) == 1
        text = text[: first.start()] + f"{entry.imports}\n" + text[first.start() :]
        registry.write_text(text.replace(entry.before, f"{entry.line}\n{entry.before}"))
    return folder


@pytest.mark.parametrize("kind", ENTRIES)
def test_contributing_says_so(kind: str) -> None:
    entry = ENTRIES[kind]
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith(f"| {kind} |")]
    assert len(rows) == 1
    assert f"`{Path(entry.file).parent}/<" in rows[0]
    assert f"`{entry.registry}`" in rows[0]


@pytest.mark.slow
def test_one_file_and_one_line_each(tree: Path) -> None:
    contracts = sorted({entry.contract for entry in ENTRIES.values()})
    words = " or ".join(entry.word for entry in ENTRIES.values())
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *contracts, "-k", words]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    shown = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for kind, entry in ENTRIES.items():
        cases = [line for line in shown.stdout.splitlines() if line.startswith(entry.contract) and entry.word in line]
        assert len(cases) >= 3, f"its contract tests {kind}"


def test_every_row_of_contributing_is_tried() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("\n\n")[1]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines()[2:]]
    assert sorted(ENTRIES) == sorted(rows)
