"""The digests that stages depend on, of the real tree."""

import ast
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from extract.datasets import DATASETS, DataError
from extract.encoders import ENCODERS
from pipelines.code.__main__ import main as write
from pipelines.code.closure import Project
from pipelines.code.reader import main as write_reader
from pipelines.code.units import AGGREGATORS, FOLDERS, PROTOCOLS, units
from pipelines.code.units import ENCODERS as OF_ENCODERS
from pipelines.parameters.params import read_params
from probe.aggregators import AGGREGATORS as BY_NAME
from probe.closed import CLOSED
from store import BeyondClsError
from tests import forked
from tests.extract.pictures import picture, write_example
from tests.machines.project import ROOT

OURS = ("extract", "pipelines", "probe", "store")
# What may be left out where it is not used, and what that alone imports.
LEAVES = tuple(f"{folder}/" for folder in ("extract/encoders", "extract/datasets", "extract/attention", "probe/aggregators"))
LEAVES += ("probe/closed/", "probe/pooling.py", "probe/ranks.py", "extract/plain_pickle.py", "store/user_code.py")
LEAVES += ("store/kernels.py", "store/onednn.py", "probe/softmax_regression.py", "probe/cores.py")
PROJECT = Project(ROOT)


def of_params(params: Any) -> dict[str, dict[str, str | None]]:
    return {unit.file: PROJECT.digests(unit.modules, unit.used) for unit in units(params, PROJECT)}


@cache
def of_the_quickstart() -> dict[str, dict[str, str | None]]:
    return of_params(read_params(ROOT / "params.yaml"))


def lazily(module: str) -> list[str]:
    """A module, and those that its functions import when they run."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    inside = (node for part in ast.parse(file.read_text()).body if isinstance(part, ast.FunctionDef) for node in ast.walk(part))
    return [
        module,
        *sorted({node.module for node in inside if isinstance(node, ast.ImportFrom) and node.module.startswith(OURS)}),
    ]


def write_imported(programs: list[list[str]], out: Path) -> None:
    """Write which of our files the modules of each program import; what others make was imported before."""
    imported = []
    for modules in programs:
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        for name in modules:
            importlib.import_module(name)
        ours = [module for name, module in sys.modules.items() if name.split(".")[0] in OURS]
        imported.append([module.__file__.removeprefix(f"{ROOT}/") for module in ours if module.__file__ is not None])
    out.write_text(json.dumps(imported))


def test_all_that_runs_is_in_it_or_is_a_leaf_that_is_not_used(tmp_path):
    programs = {unit.modules[0]: unit for unit in units(read_params(ROOT / "params.yaml"), PROJECT)}
    assert forked.status(write_imported, [lazily(module) for module in programs], tmp_path / "imported") == 0
    for unit, files in zip(programs.values(), json.loads((tmp_path / "imported").read_text()), strict=True):
        ran = set(files)
        missing = ran - of_the_quickstart()[unit.file].keys()
        assert all(file.startswith(LEAVES) and not file.endswith("__init__.py") for file in missing), unit.file
        assert not ran - PROJECT.digests(unit.modules, {}).keys(), "with all entries of registries, nothing is left out"
    assert "store/truths/reading.py" in of_the_quickstart()["attention"], "which some function of what it imports imports later"


def test_no_program_needs_the_other_stage_or_the_command_line():
    """Nor do dense tasks, heads and extraction depend on one another: an edit of one trains nothing of the others again."""
    dense = {"detection": ("detect",), "segmentation": ("segment", "depth", "track")}
    for name, files in of_the_quickstart().items():
        others = ["pipelines/cli.py", "tests/"]
        others += ["extract/", "pipelines/engines/"] * name.startswith(("heads/", "studies/"))
        others += ["probe/"] * name.startswith("extract/")
        others += ["extract/"] * (name == "params")  # or recipes were written after each edit of it
        others += [f"pipelines/parameters/{task}.py" for task, names in dense.items() if name not in (names[0], "params")]
        assert not [file for file in files if file.startswith(tuple(others))], name
        for task, names in dense.items():
            assert any(file.startswith(f"probe/{task}/") for file in files) == (name in names), (name, task)
    assert not any(file.startswith("probe/aggregators/ab") for file in of_the_quickstart()["detect"])


def test_encoders_depend_on_their_own_family_or_file():
    own = {"model": "tests/machines/project.py:make"}
    mine = {"model": "mae-b16", "checkpoint": "a.pt"}
    by_unit = of_params({"encoders": {"dino-b16": {}, "mine": mine, "own": own, "vit_base_patch16_224.augreg": None}})
    leaves = {f"extract/encoders/{name}.py" for name in ("joint", "masked", "capi", "supervised", "quickstart")}
    used = {
        name.removeprefix("extract/"): files.keys() & {*leaves, "tests/machines/project.py"} for name, files in by_unit.items()
    }
    assert used["dino-b16"] == {"extract/encoders/joint.py"}
    assert used["mine"] == {"extract/encoders/masked.py"}
    assert used["own"] == {"tests/machines/project.py"}
    assert used["vit_base_patch16_224.augreg"] == set()
    assert "extract/datasets/coco.py" not in by_unit["extract/own"]


def test_every_entry_of_a_registry_is_told_by_the_source():
    """Or adding one would concern others."""
    for (module, name), entries in ((OF_ENCODERS, ENCODERS), (AGGREGATORS, BY_NAME), (PROTOCOLS, CLOSED)):
        used = {key: PROJECT.digests([module], {(module, name): {key}}).keys() for key in entries}
        assert set.union(*map(set, used.values())) == set(PROJECT.digests([module], {}))
        for key, kind in entries.items():
            home = getattr(kind, "__module__", "").replace(".", "/")
            assert module == OF_ENCODERS[0] or f"{home}.py" in used[key]


def test_statistics_are_those_that_params_list():
    """Of their files: one has those of the paper and of its code."""
    file = "extract/attention/statistics.py"
    assert file in of_the_quickstart()["extract/quickstart-mae"]
    for extract, counts in (({"statistics": ["cls_self"]}, True), ({}, True), ({"statistics": []}, False)):
        by_unit = of_params({"encoders": {"mae-b16": {}}, "extract": extract})
        assert all((file in by_unit[name]) == counts for name in ("extract/mae-b16", "attention"))


def test_heads_and_studies_depend_on_their_aggregators_and_protocols():
    text = """\
cls_heads: {linear: {aggregator: cls}}
heads: {max: {}, near: {aggregator: average, protocol: {name: knn}}, abmilp: {aggregator: ap}}
own_heads: {mine: {aggregator: "heads/some.py:Mine"}}
studies: {s: {encoder: e, heads: {a: {aggregator: ep}, b: {aggregator: pca}}}}
block_studies: {t: {encoder: e, protocol: knn, heads: {simpool: }}}
localised: {e: {encoder: e, head: abmilp}}
scores: {e: {encoder: e, head: near}}
"""
    by_unit = of_params(yaml.safe_load(text))
    leaves = {f"{kind.__module__.replace('.', '/')}.py" for kind in BY_NAME.values()}
    expected = {"heads/mine": set(), "studies/s": {"cross_attention", "unsupervised"}}
    expected |= {f"heads/{head}": {"plain"} for head in ("linear", "max", "near")}
    expected |= {name: {"cross_attention"} for name in ("heads/abmilp", "studies/t", "localise")}
    expected["score"] = {"plain"}
    assert {name: by_unit[name].keys() & leaves for name in expected} == {
        name: {f"probe/aggregators/{leaf}.py" for leaf in names} for name, names in expected.items()
    }
    near = {name for name, files in by_unit.items() if "probe/closed/neighbours.py" in files}
    assert near == {"blocks", "few-shot", "heads/near", "score", "studies/t"}
    assert by_unit["heads/mine"]["heads/some.py"] is None
    assert "heads/some.py" not in by_unit["heads/max"]


def test_the_report_depends_on_what_its_page_is_made_of():
    by_unit = of_the_quickstart()["report"]
    assert {f"pipelines/report/page.{kind}" for kind in ("css", "html.jinja", "js")} <= by_unit.keys()
    assert "pipelines/report/published/efficient_probing.csv" in by_unit


def test_files_are_written_and_nothing_else_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.code.__main__.Project", lambda *_: PROJECT)
    params, out = tmp_path / "params.yaml", tmp_path / "code"
    params.write_text("encoders: {mae-b16: {}}\nheads: {average: {}}")
    write(params, out)
    assert {path.name for path in out.iterdir() if path.is_dir()} == set(FOLDERS), "DVC expects all of them"
    assert {path.stem for path in (out / "readers").iterdir()} == set(DATASETS)
    assert json.loads((out / "heads/average.json").read_text()) == of_params({"heads": {"average": {}}})["heads/average"]
    params.write_text("encoders: {dino-b16: {}}")
    write(params, out)
    assert {path.name for path in (out / "extract").iterdir()} == {"dino-b16.json", "mae-b16.json"}, "DVC removes outs"
    shutil.rmtree(out / "heads")
    (out / "heads").symlink_to(tmp_path)
    with pytest.raises(BeyondClsError, match="code/heads is a link to"):
        write(params, out)
    assert {path.name for path in tmp_path.iterdir()} == {"params.yaml", "code"}
    command = [sys.executable, "-m", "pipelines.code", "--params", "none.yaml", "--out", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr.partition(" 'none.yaml'")[0]) == (1, "error: there is no parameter file")


# Commands that measure what is stored.
MEASURES = "blocks correspond depth few_shot geometry norms retrieve score segment similarity track"


@pytest.mark.parametrize("command", MEASURES.split())
def test_no_measure_can_run_an_encoder(command: str):
    assert "extract/forward.py" not in PROJECT.digests([f"pipelines.{command}"], {("extract.datasets", "DATASETS"): ()})


class TestReader:
    @pytest.fixture
    def write(self, tmp_path) -> Callable[[str, Path], dict[str, Any]]:
        (tmp_path / "readers").mkdir()
        for form in DATASETS:
            (tmp_path / "readers" / f"{form}.json").write_text(json.dumps({f"{form}.py": "0"}))

        def write(dataset: str, out: Path = tmp_path / "of/data.json") -> dict[str, Any]:
            says = "{train: a, test: b, form: folder}" if dataset == "called" else ""
            (tmp_path / "params.yaml").write_text(f"data: {tmp_path}\ndatasets: {{{dataset}: {says}}}\n")
            write_reader(dataset, out, tmp_path / "params.yaml", tmp_path / "readers")
            return json.loads(out.read_text())

        return write

    def test_the_form_is_seen_or_named(self, tmp_path, write):
        for folder in ("called", "data/train", "data/test", "published/cifar-10-batches-bin"):
            (tmp_path / folder).mkdir(parents=True)
        for split in ("train", "test"):
            (tmp_path / f"data/{split}/0.tar").touch()
        assert list(write("called", tmp_path / "called.json")["readers"]) == ["folder"]
        assert write("data")["readers"] == {"tars": {"tars.py": "0"}}
        (tmp_path / "data/test/0.tar").unlink()
        assert list(write("data")["readers"]) == ["folder", "tars"]
        assert list(write("published")["readers"]) == ["cifar10"]

    def test_whatever_an_extraction_depends_on(self, tmp_path, write):
        """Of each split: its images, its label maps, the names of classes; nothing else that lies in the folder."""
        source = Path(write_example(tmp_path / "data", "label-maps"))
        before = write("data")["images"]
        assert before["test"]["truths"].keys() == {"instances", "segmentation"}
        (source / "notes.txt").write_text("new")
        assert write("data")["images"] == before
        colours, label_map, objects = source / "label-colours.txt", source / "labels/test/c.png", source / "instances/test.json"
        changes: list[Callable[[], object]] = [
            lambda: (source / "images/test/c.png").write_bytes(picture(7)),
            lambda: Image.new("RGB", Image.open(label_map).size, (70, 70, 70)).save(label_map),
            lambda: colours.write_text(colours.read_text().replace("brick", "long")),
            lambda: objects.write_text(objects.read_text().replace("cart", "car")),
            lambda: label_map.unlink(),
        ]
        seen = [before]
        for change in changes:
            change()
            now = write("data")["images"]
            assert all(now["test"] != earlier["test"] for earlier in seen), len(seen)
            seen.append(now)
        assert seen[2]["train"] == before["train"]

    def test_without_images_and_of_two_forms_at_once(self, tmp_path, write):
        with pytest.raises(BeyondClsError, match=r"there is no '.*none', expected a data set"):
            write("none")
        for sign in ("cifar-10-batches-bin", "cifar-100-binary"):
            (tmp_path / "data" / sign).mkdir(parents=True)
        with pytest.raises(DataError, match="looks like cifar10 and like cifar100"):
            write("data")
