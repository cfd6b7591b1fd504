"""What CONTRIBUTING promises: one file and one line add an entry, and the contracts test it. Tried in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_docs import FILES, block

ROOT = Path(__file__).resolve().parents[1]
TREE = ("beyondcls", "extract", "heads", "pipelines", "probe", "store", "tests", "docs")
TREE += ("README.md", "dvc.yaml", "params.yaml", "pyproject.toml")


@dataclass(frozen=True)
class Entry:
    """Something to add.

    Attributes:
        file: is written, with the content of the file of the same name in tests/newcomers.
        contract: test file that must test it, without a change.
        lines: are added, by the file of the registry: the line, and the line that follows it. The first of these files
            imports the module, too.
    """

    file: str
    contract: str
    lines: dict[str, tuple[str, str]]

    @property
    def name(self) -> str:
        """Of the module, and in the names of the contract's cases."""
        return Path(self.file).stem

    @property
    def content(self) -> str:
        """A file of this folder, the package of tests/plugin, or the aggregator of the documentation as a file of ours."""
        if self.name in ("birds", "first_patch_to_cls"):
            return (ROOT / "tests/plugin/beyondcls_newcomers.py").read_text()
        if self.name != "gem":
            return (ROOT / "tests/newcomers" / Path(self.file).name).read_text()
        imports = "from probe.aggregators.aggregator import Aggregator, Pooled"
        return block("python", FILES[0]).replace("import beyondcls", imports).replace("beyondcls.", "")


STAGE = """\
  ranking:
    desc: Order the heads of one encoder.
    matrix:
      encoder: ${encoders}
      dataset: ${datasets}
    cmd:
      - python -P -m pipelines.parameters.commands
      - beyondcls ranking --probes probes/${item.dataset}/${item.encoder} --out ranking/${item.dataset}/${item.encoder}.csv
    deps:
      - code/ranking.json
      - probes/${item.dataset}/${item.encoder}
    outs:
      - ranking/${item.dataset}/${item.encoder}.csv

"""
ENTRIES = {
    "an encoder": Entry(
        "extract/encoders/newcomer.py",
        "tests/contracts/test_encoders.py",
        {
            "extract/encoders/__init__.py": ("    **newcomer.ENCODERS,", "    **quickstart.ENCODERS,"),
            "tests/extract/encoders/published.py": (
                '    "newcomer-s16": (Vit(384, 12, 6, at="network/encoder.", dropped=("network/decoder.weight",)),),',
                '    "quickstart-mae": (QUICKSTART,),',
            ),
        },
    ),
    "an aggregator": Entry(
        "probe/aggregators/gem.py",
        "tests/contracts/test_aggregators.py",
        {"probe/aggregators/__init__.py": ('    "gem": gem.GeM,', '    "k-means": KMeans,')},
    ),
    "an attention statistic": Entry(
        "extract/attention/first_patch_to_cls.py",
        "tests/extract/attention/test_statistics.py",
        {
            "extract/attention/__init__.py": (
                '    "first_patch_to_cls": first_patch_to_cls.first_patch_to_cls,',
                '    "patches_to_cls": patches_to_cls,',
            )
        },
    ),
    "a dtype of tokens": Entry(
        "store/codecs/float8_e5m2.py",
        "tests/contracts/test_codecs.py",
        {"store/codecs/__init__.py": ('    "float8_e5m2": float8_e5m2.Float8E5M2(),', '    "int8": Int8(),')},
    ),
    "a metric": Entry(
        "probe/metrics/sure.py",
        "tests/contracts/test_metrics.py",
        {"probe/metrics/__init__.py": ('    "sure": sure.sure_hits,', '    "top5": partial(top_k_hits, k=5),')},
    ),
    "a protocol without gradient steps": Entry(
        "probe/closed/penalised.py",
        "tests/contracts/test_closed.py",
        {"probe/closed/__init__.py": ('    "penalised": penalised.Penalised,', '    "ridge": Ridge,')},
    ),
    "a data set": Entry(
        "extract/datasets/birds.py",
        "tests/contracts/test_datasets.py",
        {"extract/datasets/__init__.py": ('    "birds": birds.BIRDS,', '    "cifar10": CIFAR10,')},
    ),
    "a form of exchange": Entry(
        "store/exchange/raw.py",
        "tests/contracts/test_exchanges.py",
        {"store/exchange/__init__.py": ('    "raw": raw.Raw(),', '    "npy": Npy(),')},
    ),
    "a store tool": Entry(
        "pipelines/store/count.py",
        "tests/contracts/test_stages.py",
        {"pipelines/store/__init__.py": ('app.command("count")(count.count)', 'app.command("rm")(remove.rm)')},
    ),
    "an engine": Entry(
        "pipelines/engines/one_thread.py",
        "tests/contracts/test_engines.py",
        {"pipelines/engines/__init__.py": ('    "one_thread": one_thread.OneThread,', '    "slurm": Slurm,')},
    ),
    "a check of the machine": Entry(
        "pipelines/doctor/clock.py",
        "tests/contracts/test_doctor.py",
        {"pipelines/doctor/__init__.py": ('    "clock": clock.check,', '    "gpu": computer.gpu,')},
    ),
    "a stage": Entry(
        "pipelines/ranking.py",
        "tests/contracts/test_stages.py",
        {
            "pipelines/cli.py": ('app.command("ranking")(ranking.main)', 'app.command("report")(report.main)'),
            "pipelines/code/units.py": (
                '    yield CodeUnit("ranking", ("pipelines.ranking",), {})',
                '    yield CodeUnit("report", ("pipelines.report.command",), {READERS: ()})',
            ),
            "dvc.yaml": ("      code/ranking.json,", "      code/geometry.json, code/localise.json"),
        },
    ),
    "a section of the report": Entry(
        "pipelines/report/sections/best_heads.py",
        "tests/contracts/test_sections.py",
        {"pipelines/report/sections/__init__.py": ("    best_heads.section,", "    curves.section,")},
    ),
    "a form of the report's tables": Entry(
        "pipelines/report/formats/jsonl.py",
        "tests/contracts/test_formats.py",
        {"pipelines/report/formats/__init__.py": ('    "jsonl": jsonl.to_jsonl,', '    "tex": to_latex,')},
    ),
}


def add(entry: Entry, tree: Path) -> None:
    """Write its file and its lines."""
    assert not (tree / entry.file).exists()
    (tree / entry.file).write_text(entry.content)
    for number, (registry, (line, before)) in enumerate(entry.lines.items()):
        text = (tree / registry).read_text()
        assert text.count(before) == 1
        text = text.replace(before, f"{line}\n{before}")
        if not number:
            package = Path(entry.file).parent.as_posix().replace("/", ".")
            text = re.sub(r"^from ", f"from {package} import {entry.name}\nfrom ", text, count=1, flags=re.MULTILINE)
        (tree / registry).write_text(text)
    if "dvc.yaml" in entry.lines:
        text = (tree / "dvc.yaml").read_text()
        (tree / "dvc.yaml").write_text(text.replace("stages:\n", f"stages:\n{STAGE}", 1))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all of these entries."""
    folder = tmp_path_factory.mktemp("tree")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))  # that is being written
        else:
            shutil.copy(ROOT / name, folder)
    for entry in ENTRIES.values():
        add(entry, folder)
    return folder


def rows() -> dict[str, str]:
    """CONTRIBUTING's table, by what is added."""
    table = (ROOT / "CONTRIBUTING.md").read_text().split("\n\n")[1]
    return {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines()[2:]}


@pytest.mark.parametrize("kind", ENTRIES)
def test_contributing_says_so(kind: str) -> None:
    entry, row = ENTRIES[kind], rows()[kind]
    assert f"`{Path(entry.file).parent}/<" in row
    for registry in entry.lines:
        assert f"`{registry}`" in row


@pytest.mark.slow
def test_one_file_and_one_line_each(tree: Path) -> None:
    contracts = sorted({entry.contract for entry in ENTRIES.values()})
    names = " or ".join(entry.name for entry in ENTRIES.values())
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *contracts, "-k", names]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    shown = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for kind, entry in ENTRIES.items():
        cases = [line for line in shown.stdout.splitlines() if line.startswith(entry.contract) and entry.name in line]
        assert cases, f"its contract tests {kind}"


def test_every_row_of_contributing_is_tried() -> None:
    assert sorted(ENTRIES) == sorted(rows())
