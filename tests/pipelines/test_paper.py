"""The whole paper as one project: paper/params.yaml, on a few fabricated images and tiny encoders."""

import csv
import html
import json
import re
import runpy
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
import yaml
from dvc.repo import Repo

from extract.datasets import DATASETS
from pipelines import cli
from pipelines.parameters.commands import check_commands
from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.groups import plans_of_study, studies_of
from pipelines.parameters.params import read_params
from pipelines.parameters.stages import CHECK
from pipelines.report import drawing
from probe.result_files import read_result
from store import FeatureStore
from tests.extract.encoders.official import values_of, written
from tests.extract.encoders.published import PUBLISHED
from tests.extract.pictures import write_example
from tests.machines.project import ROOT, edit

PARAMS = read_params(ROOT / "paper/params.yaml")
TABLES = read_params(ROOT / "paper/tables.yaml")["stages"]
KINDS = (  # of encoders that pass through the pipeline in their own way; mae-b16 is the one that most studies read
    "mae-b16", "simmim-b16", "beitv2-b16", "ijepa-h14", "capi-l14", "dino-b16", "mae-ft-b16",
)  # fmt: skip
WITHOUT_CLS = ("ijepa-h14", "capi-l14")
DEPTH = 12  # studies name blocks
BRIEF = {"epochs": 1, "warmup_epochs": 0}


@pytest.mark.parametrize("name", studies_of(PARAMS))
def test_studies_can_be_made(name: str) -> None:
    entry = studies_of(PARAMS)[name][1]
    plans, _ = plans_of_study(PARAMS, name, encoder=entry["encoder"], dataset=entry["dataset"])
    assert plans
    assert {entry["encoder"], entry.get("joined", entry["encoder"])} <= set(PARAMS["encoders"])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_shows_the_encoders_that_it_waits_for(name: str) -> None:
    body = TABLES[name].get("do", TABLES[name])
    shown = re.findall(r"--encoder (\S+)", body["cmd"])
    waited = {part for dep in body["deps"] for part in dep.split("/")} & set(PARAMS["encoders"])
    assert set(shown) <= set(PARAMS["encoders"])
    assert not shown or set(shown) >= waited
    assert len(set(shown)) == len(re.findall("--encoder", body["cmd"]))


def test_every_published_table_has_its_stage_and_every_data_set_its_form() -> None:
    """And the page does not read what tables record, or it is made again after each: `dvc repro` writes paper/dvc.lock."""
    files = (ROOT / "pipelines/report/published").glob("table-*.csv")
    numbered = {re.match(r"table-\d+", file.stem)[0] for file in files}  # versions of the paper share their stage
    assert numbered
    assert numbered <= set(TABLES)
    assert "paper" not in (PARAMS["other_probes"], PARAMS["other_studies"])
    assert {values["form"] for values in datasets_of(PARAMS).values()} <= set(DATASETS)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    """By table, how many stages of each kind run for it, in DVC's own graph of the whole project."""
    folder = tmp_path_factory.mktemp("graph")
    (folder / "paper").mkdir()
    shutil.copy(ROOT / "dvc.yaml", folder)
    shutil.copy(ROOT / "paper/params.yaml", folder)
    shutil.copy(ROOT / "paper/tables.yaml", folder / "paper/dvc.yaml")
    with Repo.init(str(folder), no_scm=True) as repo:
        graph = repo.index.graph
        return {
            stage.name.partition("@")[0]: Counter(above.name.partition("@")[0] for above in nx.descendants(graph, stage))
            for stage in graph
            if stage.path_in_repo == "paper/dvc.yaml"
        }


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")
@pytest.mark.parametrize(
    ("table", "stages"),
    [
        ("table-1", {"extract": 26, "probe-cls": 13, "probe": 26}),
        ("table-2", {"extract": 42, "probe-cls": 21, "probe": 42}),  # of one data set
        ("table-3", {"extract": 6, "attention": 6}),  # test images alone
        ("table-5-v1", {"extract-dense": 6, "detect": 3}),
        ("table-6", {"extract": 4, "probe-cls": 1, "probe": 2, "study": 1}),
        ("table-7", {"extract": 14, "study": 7}),
        ("table-8", {"extract": 4, "extract-whole": 2, "probe": 2, "localise": 2}),
    ],
)
def test_a_table_waits_for_nothing_else(table: str, stages: dict[str, int], behind: dict[str, Counter[str]]) -> None:
    assert {name: n for name, n in behind[table].items() if not name.startswith(("code", "recipes"))} == stages


def smaller(encoders: Sequence[str], sets: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """A change of the project: some encoders, of little width, some data sets, and one epoch."""

    def change(params: dict[str, Any]) -> None:
        params["encoders"] = {name: {**PARAMS["encoders"][name], **small(name)} for name in encoders}
        for section in ("studies", "block_studies", "divergence", "whole", "localised", "by_block"):
            entries = PARAMS[section].items()
            of_some = {name: e for name, e in entries if e["dataset"] in sets}
            kept = {name: e for name, e in of_some.items() if {e["encoder"], e.get("joined", e["encoder"])} <= {*encoders}}
            params[section] = {name: {**entry, **(BRIEF if "stud" in section else {})} for name, entry in kept.items()}
        params["datasets"] = {name: {**PARAMS["datasets"][name], **BRIEF} for name in sets}
        params["probe"]["seeds"] = [0]

    return change


def small(name: str) -> dict[str, Any]:
    """What params.yaml says of an encoder whose checkpoint is small."""
    _, arguments = PUBLISHED[name][0].smaller()
    return {"checkpoint": f"checkpoints/{name}.pth", "arguments": {**arguments, "depth": DEPTH}, "batch_size": 8}


def write_tables(folder: Path, encoders: Sequence[str]) -> None:
    """The tables of a project with some of the encoders."""
    absent = {*PARAMS["encoders"]} - {*encoders}

    def narrowed(stage: dict[str, Any]) -> dict[str, Any]:
        if "do" in stage:
            return {**stage, "do": narrowed(stage["do"])}
        cmd = re.sub(r"--encoder (\S+)", lambda match: "" if match[1] in absent else match[0], stage["cmd"])
        return {**stage, "cmd": cmd, "deps": [dep for dep in stage["deps"] if absent.isdisjoint(dep.split("/"))]}

    stages = {name: narrowed(stage) for name, stage in TABLES.items()}
    (folder / "paper/dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))


def write_checkpoint(folder: Path, name: str) -> None:
    """Random values under the names that the authors publish."""
    file = replace(PUBLISHED[name][0].smaller()[0], depth=DEPTH)
    folder.mkdir(exist_ok=True)
    torch.save(written(file, values_of(file.tensors(), seed=KINDS.index(name))), folder / f"{name}.pth")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    shutil.copy(ROOT / "dvc.yaml", folder)
    shutil.copy(ROOT / "paper/params.yaml", folder)
    (folder / "paper").mkdir()
    for name in KINDS:
        write_checkpoint(folder / "checkpoints", name)
    (folder / "data").mkdir()
    for name, values in datasets_of(PARAMS).items():
        shutil.move(write_example(folder / "examples" / name, values["form"]), folder / "data" / name)
    (folder / "data/imagenet-1pct/imagenet-1pct.txt").write_text("n01443537_2.JPEG\nn01440764_9.JPEG\n")
    Repo.init(str(folder), no_scm=True).close()
    return folder


def compute(folder: Path, *tables: str) -> None:
    """The stages that these tables wait for, as DVC orders them, each in this process; what it reads and writes is there."""
    with chdir(folder), Repo() as repo:
        check_commands(read_params(Path("params.yaml")))
        graph = repo.index.graph
        wanted = {stage for stage in graph if stage.path_in_repo == "paper/dvc.yaml" and stage.name in tables}
        assert len(wanted) == len(tables)
        needed = graph.subgraph(wanted.union(*(nx.descendants(graph, stage) for stage in wanted)))
        for stage in reversed([*nx.topological_sort(needed)]):
            if stage.name != "code":  # which is here, not in the folder
                assert [str(dep) for dep in stage.deps if not dep.exists] == [], stage.name
            for command in [stage.cmd] if isinstance(stage.cmd, str) else stage.cmd:
                for part in command.split("&&") if command != CHECK else ():
                    called(shlex.split(part))
            assert [str(out) for out in stage.outs if not out.exists] == [], stage.name


def called(words: Sequence[str]) -> None:
    """`beyondcls …`, or `python -P -m MODULE …`; plots stay empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_save", lambda *_, **__: b"<svg></svg>")
        if words[0] == "beyondcls":
            patch.setattr(sys, "argv", [*words])
            cli.app([*words[1:]], standalone_mode=False)
        else:
            patch.setattr(sys, "argv", [*words[3:]])
            with pytest.raises(SystemExit) as ended:
                runpy.run_module(words[3], run_name="__main__")
            assert not ended.value.code


# Columns with empty cells, and the words of their page that say why; one seed has no standard deviation.
NO_CLS = ("ijepa-h14: no cls tokens, which [cls] reads",)
NO_CLS_ATTENTION = ("Not computed: capi-l14, ijepa-h14", "no [cls]: uniform")
NO_WEIGHTS = ("Entropy: of the weights",)
DEFAULT = ("Options: a dash is the default.",)
EMPTY = {
    "accuracy": dict.fromkeys(("cls", "cls_converged", "abmilp_minus_cls"), NO_CLS),
    "gains": dict.fromkeys(("share", "share_interval"), ("share of the errors that the other head makes, if it makes any",))
    | {"points_interval": ("it has no share of errors and no interval",)},
    "probes": dict.fromkeys(("entropy", "ln_T", "effective_patches"), NO_WEIGHTS),
    "selection": dict.fromkeys(("entropy_mae_b16", "effective_patches_mae_b16"), NO_WEIGHTS),
    "aggregation-entropy": dict.fromkeys(("last_block", "effective_patches_last_block"), NO_CLS_ATTENTION),
    "attention-by-block": dict.fromkeys(("cls_self", "cls_patch_entropy", "effective_patches"), NO_CLS_ATTENTION),
    "against": dict.fromkeys(("study", "preset", "note"), ("Nothing that a number states of its measurement",))  # of none
    | {"within": ("a dash where neither is known",)},
    "against-differing": dict.fromkeys(("study", "note"), ("that were measured in another way",)),  # of none
}


def check_cells(folder: Path) -> int:
    """Number of cells that are filled on a page; asserts that it says why any other is not."""
    text = re.sub(r"<(style|script|svg)\b.*?</\1>|<[^>]+>", " ", (folder / "index.html").read_text(), flags=re.DOTALL)
    n_filled, words = 0, " ".join(html.unescape(text).split())  # which a reader sees
    for file in sorted(folder.glob("tables/*.csv")):
        if file.stem == "results" or file.stem.startswith("published"):
            continue
        rows = list(csv.DictReader(file.open()))
        columns = [name for name in rows[0] if not name.endswith("_std")]
        n_filled += sum(row[name] != "" for row in rows for name in columns)
        for name in columns:
            if any(row[name] == "" for row in rows):
                reasons = DEFAULT if name.startswith("option_") else EMPTY.get(file.stem, {}).get(name, ())
                assert any(reason in words for reason in reasons), f"{file}: {name}"
    return n_filled


@pytest.mark.slow
class TestMiniature:
    """From images and checkpoints to the pages. Which parameters each stage gets is tested with the recipes."""

    def test_every_kind_of_encoder(self, project: Path) -> None:
        edit(project, smaller(KINDS, ["imagenet"]))
        write_tables(project, KINDS)
        stages = [name for name, stage in TABLES.items() if "do" not in stage and name != "table-5-v1"]
        compute(project, *stages)
        n_filled = {name: check_cells(project / "tables" / name) for name in stages}
        assert {name for name, n in n_filled.items() if n == 0} == {"figure-9"}  # pictures
        assert (project / "tables/figure-9/index.html").read_text().count("<img") == 3 * 2
        accuracies = json.loads((project / "tables/table-1/metrics.json").read_text())
        assert {name: len(heads) for name, heads in accuracies.items()} == {
            name: 3 - (name in WITHOUT_CLS) for name in KINDS if name != "capi-l14"
        }
        entropies = csv.DictReader((project / "tables/figures-3-to-6/tables/aggregation-entropy.csv").open())
        assert len({row["entropy"] for row in entropies if row["encoder"] not in WITHOUT_CLS}) == len(KINDS) - len(WITHOUT_CLS)
        assert set(FeatureStore.open(project / "features/simmim-b16-imagenet-train").spec.blocks) == {8}
        metrics = read_result(project / "probes/imagenet/ijepa-h14/abmilp/metrics.json")
        assert metrics["recipe"]["epochs"] == 50  # of ViT-H; those of the data set are one here
        for name in PARAMS["localised"]:
            frame = read_result(project / f"localisation/imagenet/{name}/localisation.json")["frame"]
            assert (frame["official"], frame["percent_outside"]) == (True, 0.0)

    def test_every_data_set(self, project: Path) -> None:
        edit(project, smaller(["mae-b16"], [*PARAMS["datasets"]]))
        write_tables(project, ["mae-b16"])
        names = TABLES["table-2"]["foreach"]
        compute(project, *(f"table-2@{name}" for name in names))
        assert all(check_cells(project / "tables" / f"table-2-{name}") for name in names)
        for name, values in datasets_of(PARAMS).items():
            for head in ("cls", "average", "abmilp"):
                metrics = read_result(project / "probes" / name / "mae-b16" / head / "metrics.json")
                assert values["metric"] in metrics
                expected = ("sgd", 1024) if values["preset"] == "small-sgd" else ("lars", 16384)
                assert (metrics["recipe"]["optimiser"], metrics["recipe"]["batch_size"]) == expected
        assert read_result(project / "probes/imagenet-1pct/mae-b16/cls/metrics.json")["n_training"] == 2
        assert len(FeatureStore.open(project / "features/mae-b16-imagenet-1pct-train")) == 2
