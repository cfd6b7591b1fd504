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
        lines: are added, by the file of the registry: the line, and the line that follows it.
        imports: one more line in the first of these files.
        contract: test file that must test it, without a change.
        word: in the names of the contract's cases of it.
    """

    file: str
    lines: dict[str, tuple[str, str]]
    imports: str
    contract: str
    word: str

    @property
    def content(self) -> str:
        """The aggregator of the documentation, as a file of the package, or a file of this folder."""
        if self.word != "gem":
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
NEWCOMER = """\
    "newcomer-s16": (
        Vit(
            384,
            12,
            6,
            at="network/encoder.",
            names={
                "cls": "class_token",
                "positions": "positions",
                "patches": "patchify",
                "block": "layers.{}.",
                "norm1": "ln_1",
                "qkv": "attention.in",
                "proj": "attention.out",
                "norm2": "ln_2",
                "fc1": "ffn.0",
                "fc2": "ffn.2",
                "norm": "ln_final",
            },
            dropped=("network/encoder.mask", "network/decoder.weight"),
        ),
    ),"""
ENTRIES = {
    "an encoder": Entry(
        file="extract/encoders/newcomer.py",
        lines={
            "extract/encoders/__init__.py": ("    **newcomer.ENCODERS,", "    **quickstart.ENCODERS,"),
            "tests/extract/encoders/published.py": (NEWCOMER, '    "quickstart-mae": (QUICKSTART,),'),
        },
        imports="from extract.encoders import newcomer",
        contract="tests/contracts/test_encoders.py",
        word="newcomer",
    ),
    "an aggregator": Entry(
        file="probe/aggregators/gem.py",
        lines={"probe/aggregators/__init__.py": ('    "gem": GeM,', '    "k-means": KMeans,')},
        imports="from probe.aggregators.gem import GeM",
        contract="tests/contracts/test_aggregators.py",
        word="gem",
    ),
    "an attention statistic": Entry(
        file="extract/attention/centre_to_cls.py",
        lines={
            "extract/attention/__init__.py": ('    "centre_to_cls": centre_to_cls,', '    "patches_to_cls": patches_to_cls,')
        },
        imports="from extract.attention.centre_to_cls import centre_to_cls",
        contract="tests/extract/attention/test_statistics.py",
        word="centre_to_cls",
    ),
    "a dtype of tokens": Entry(
        file="store/codecs/float8_e5m2.py",
        lines={"store/codecs/__init__.py": ('    "float8_e5m2": Float8E5M2(),', '    "int8": Int8(),')},
        imports="from store.codecs.float8_e5m2 import Float8E5M2",
        contract="tests/contracts/test_codecs.py",
        word="float8_e5m2",
    ),
    "a metric": Entry(
        file="probe/metrics/sure.py",
        lines={"probe/metrics/__init__.py": ('    "sure": sure_hits,', '    "top5": partial(top_k_hits, k=5),')},
        imports="from probe.metrics.sure import sure_hits",
        contract="tests/contracts/test_metrics.py",
        word="sure",
    ),
    "a protocol without gradient steps": Entry(
        file="probe/closed/parzen.py",
        lines={"probe/closed/__init__.py": ('    "parzen": Parzen,', '    "ridge": Ridge,')},
        imports="from probe.closed.parzen import Parzen",
        contract="tests/contracts/test_closed.py",
        word="parzen",
    ),
    "a data set": Entry(
        file="extract/datasets/birds.py",
        lines={"extract/datasets/__init__.py": ('    "birds": BIRDS,', '    "cifar10": CIFAR10,')},
        imports="from extract.datasets.birds import BIRDS",
        contract="tests/contracts/test_datasets.py",
        word="birds",
    ),
    "a form of exchange": Entry(
        file="store/exchange/raw.py",
        lines={"store/exchange/__init__.py": ('    "raw": Raw(),', '    "npy": Npy(),')},
        imports="from store.exchange.raw import Raw",
        contract="tests/contracts/test_exchanges.py",
        word="raw",
    ),
    "a store tool": Entry(
        file="pipelines/store/count.py",
        lines={"pipelines/store/__init__.py": ('app.command("count")(count.count)', 'app.command("rm")(remove.rm)')},
        imports="from pipelines.store import count",
        contract="tests/contracts/test_stages.py",
        word="count",
    ),
    "an engine": Entry(
        file="pipelines/engines/one_thread.py",
        lines={"pipelines/engines/__init__.py": ('    "one-thread": OneThread,', '    "slurm": Slurm,')},
        imports="from pipelines.engines.one_thread import OneThread",
        contract="tests/contracts/test_engines.py",
        word="thread",
    ),
    "a check of the machine": Entry(
        file="pipelines/doctor/clock.py",
        lines={"pipelines/doctor/__init__.py": ('    "clock": clock.check,', '    "gpu": computer.gpu,')},
        imports="from pipelines.doctor import clock",
        contract="tests/contracts/test_doctor.py",
        word="clock",
    ),
    "a stage": Entry(
        file="pipelines/ranking.py",
        lines={
            "pipelines/cli.py": ('app.command("ranking")(ranking.main)', 'app.command("report")(report.main)'),
            "pipelines/code/units.py": (
                '    yield CodeUnit("ranking", ("pipelines.ranking",), {})',
                '    yield CodeUnit("report", ("pipelines.report.command",), {READERS: ()})',
            ),
            "dvc.yaml": ("      code/ranking.json,", "      code/geometry.json, code/localise.json"),
        },
        imports="from pipelines import ranking",
        contract="tests/contracts/test_stages.py",
        word="ranking",
    ),
    "a section of the report": Entry(
        file="pipelines/report/sections/best_heads.py",
        lines={"pipelines/report/sections/__init__.py": ("    best_heads.section,", "    curves.section,")},
        imports="from pipelines.report.sections import best_heads",
        contract="tests/contracts/test_sections.py",
        word="best_heads",
    ),
    "a form of the report's tables": Entry(
        file="pipelines/report/formats/jsonl_table.py",
        lines={"pipelines/report/formats/__init__.py": ('    "jsonl": to_jsonl,', '    "tex": to_latex,')},
        imports="from pipelines.report.formats.jsonl_table import to_jsonl",
        contract="tests/contracts/test_formats.py",
        word="jsonl",
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
            first = re.search(r"^from ", text, re.MULTILINE)
            assert first is not None
            text = f"{text[: first.start()]}{entry.imports}\n{text[first.start() :]}"
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
    words = " or ".join(entry.word for entry in ENTRIES.values())
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *contracts, "-k", words]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    shown = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for kind, entry in ENTRIES.items():
        cases = [line for line in shown.stdout.splitlines() if line.startswith(entry.contract) and entry.word in line]
        assert cases, f"its contract tests {kind}"


def test_every_row_of_contributing_is_tried() -> None:
    assert sorted(ENTRIES) == sorted(rows())
