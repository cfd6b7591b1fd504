"""The whole paper as one project: paper/params.yaml, on a few fabricated images and tiny encoders."""

import csv
import html
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from extract.datasets import DATASETS, open_images
from extract.encoders import ENCODERS
from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.params import read_params
from pipelines.parameters.studies import plans_of_study, studies_of
from probe.result_files import read_result
from store import FeatureStore
from tests.extract.encoders.official import values_of, written
from tests.extract.pictures import write_example
from tests.machines.project import ROOT
from tests.machines.served import commands_in
from tests.pipelines.test_dvc import edit, run

PARAMS = read_params(ROOT / "paper/params.yaml")
KINDS = (  # of encoders that pass through the pipeline in their own way; mae-b16 is the one that most studies read
    "mae-b16", "simmim-b16", "beitv2-b16", "ijepa-h14", "capi-l14", "dino-b16", "mae-ft-b16",
)  # fmt: skip
WITHOUT_CLS = ("ijepa-h14", "capi-l14")
DEPTH = 12  # studies name blocks
BRIEF = {"epochs": 1, "warmup_epochs": 0}


class TestParameters:
    @pytest.mark.parametrize("name", studies_of(PARAMS))
    def test_studies_can_be_made(self, name: str) -> None:
        entry = studies_of(PARAMS)[name][1]
        plans, _ = plans_of_study(PARAMS, name, encoder=entry["encoder"], dataset=entry["dataset"])
        assert plans
        assert {entry["encoder"], entry.get("joined", entry["encoder"])} <= set(PARAMS["encoders"])

    def test_every_published_table_has_its_stage(self) -> None:
        files = (ROOT / "pipelines/report/published").glob("table_*.py")
        assert {file.stem.replace("_", "-") for file in files} <= set(PARAMS["tables"])

    def test_data_sets_are_read_by_their_own_form(self) -> None:
        assert {values["form"] for values in datasets_of(PARAMS).values()} <= set(DATASETS)


def smaller(encoders: Sequence[str], sets: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """A change of the project: some encoders, of little width, some data sets, and one epoch."""

    def change(params: dict[str, Any]) -> None:
        params["encoders"] = {name: {**PARAMS["encoders"][name], **small(name)} for name in encoders}
        for section in ("studies", "block_studies", "divergence", "localised", "by_block"):
            entries = PARAMS[section].items()
            kept = {name: e for name, e in entries if {e["encoder"], e.get("joined", e["encoder"])} <= {*encoders}}
            params[section] = {name: {**entry, **(BRIEF if "stud" in section else {})} for name, entry in kept.items()}
        params["datasets"] = {name: {**PARAMS["datasets"][name], **BRIEF} for name in sets}
        params["probe"]["seeds"] = [0]

    return change


def small(name: str) -> dict[str, Any]:
    """What params.yaml says of an encoder whose checkpoint is small."""
    _, arguments = ENCODERS[name].published[0].smaller()
    return {"checkpoint": f"checkpoints/{name}.pth", "arguments": {**arguments, "depth": DEPTH}, "batch_size": 8}


def of_sets(*names: str) -> list[str]:
    """Tables and figures of some data sets."""
    return [name for name, table in PARAMS["tables"].items() if table["reads"].split("/")[1] in names]


def write_checkpoint(folder: Path, name: str) -> None:
    """Random values under the names that the authors publish."""
    file, _ = ENCODERS[name].published[0].smaller()
    file = replace(file, depth=DEPTH)
    folder.mkdir(exist_ok=True)
    state = values_of(file.tensors(), seed=KINDS.index(name))
    torch.save(written(file, state), folder / f"{name}.pth")


def block_of(features: Path) -> int:
    (block,) = {name.split("/")[1] for name in FeatureStore.open(features).arrays if name.startswith("patch/")}
    return int(block.removeprefix("block"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("paper")
    for name in ("store", "extract", "probe", "pipelines", "heads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("beyondcls.py", "dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "paper", folder / "paper")
    shutil.copy(folder / "paper/params.yaml", folder)
    for name in KINDS:
        write_checkpoint(folder / "checkpoints", name)
    for name, values in datasets_of(PARAMS).items():
        source = write_example(folder / "examples" / name, values["form"])
        (folder / "data").mkdir(exist_ok=True)
        shutil.move(source, folder / "data" / name)
    names = (sample.id for sample in open_images(str(folder / "data/imagenet"), split="train").samples)
    (folder / "imagenet-1pct.txt").write_text("\n".join(names))
    run(folder, "git", "init", "-q")
    with commands_in(folder / ".commands", folder):
        run(folder, "dvc", "init", "-q")
        yield folder


# Columns with empty cells, and the words of their page that say why; one seed has no standard deviation.
NO_CLS = ("capi-l14 and ijepa-h14 have no cls tokens, which [cls] reads",)
NO_CLS_ATTENTION = ("Not computed: capi-l14, ijepa-h14", "no [cls]: uniform")
NO_WEIGHTS = ("Entropy: of the weights",)
EMPTY = {
    "accuracy": dict.fromkeys(("cls", "abmilp_minus_cls"), NO_CLS),
    "accuracy-top5": {"cls": NO_CLS},
    "gains": {
        **dict.fromkeys(("share", "share_interval"), ("share of the errors that the other head makes, if it makes any",)),
        "points_interval": ("it has no share of errors and no interval",),
    },
    "probes": dict.fromkeys(("entropy", "ln_T", "effective_patches"), NO_WEIGHTS),
    "selection": dict.fromkeys(("entropy_mae_b16", "effective_patches_mae_b16"), NO_WEIGHTS),
    "aggregation-entropy": dict.fromkeys(("last_block", "effective_patches_last_block"), NO_CLS_ATTENTION),
    "attention-by-block": dict.fromkeys(("cls_self", "cls_patch_entropy", "effective_patches"), NO_CLS_ATTENTION),
    "variants": {
        **dict.fromkeys(("activation", "self_attention"), ("Linear layers Activation Self-attention",)),  # without any
        "against_one_layer": ("Against one layer: points",),  # of itself
    },
    "against": {
        **dict.fromkeys(("study", "preset", "note"), ("Nothing that a number states of its measurement",)),  # of none
        "within": ("a dash where neither is known",),
    },
    "against-differing": dict.fromkeys(("study", "note"), ("that were measured in another way",)),  # of none
    "variants-apart": {"activation": ("Linear layers Activation Self-attention",)},
}


def words_of(page: Path) -> str:
    """What a reader sees."""
    text = re.sub(r"<(style|script|svg)\b.*?</\1>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def check_cells(folder: Path) -> int:
    """Number of cells that are filled on a page; asserts that it says why any other is not."""
    n_filled, words = 0, words_of(folder / "index.html")
    for file in sorted(folder.glob("tables/*.csv")):
        if file.stem == "results" or file.stem.startswith("published"):
            continue
        rows = list(csv.DictReader(file.open()))
        columns = [name for name in rows[0] if not name.endswith("_std")]
        n_filled += sum(row[name] != "" for row in rows for name in columns)
        for name in columns:
            if any(row[name] == "" for row in rows):
                assert any(reason in words for reason in EMPTY.get(file.stem, {}).get(name, ())), f"{file}: {name}"
    return n_filled


@pytest.mark.slow
class TestMiniature:
    """From images and checkpoints to the pages. Which parameters each stage gets is tested with the recipes."""

    def test_every_kind_of_encoder(self, project: Path) -> None:
        edit(project, smaller(KINDS, ["imagenet"]))
        names = of_sets("imagenet")
        run(project, "dvc", "repro", *(f"table@{name}" for name in names))
        n_filled = {name: check_cells(project / "tables" / name) for name in names}
        assert {name for name, n in n_filled.items() if n == 0} == {"figure-9"}  # pictures
        assert (project / "tables/figure-9/index.html").read_text().count("<img") == 3 * 2
        accuracies = json.loads((project / "tables/table-1/metrics.json").read_text())
        assert {name: len(heads) for name, heads in accuracies.items()} == {n: 3 - (n in WITHOUT_CLS) for n in KINDS}
        entropies = csv.DictReader((project / "tables/table-3/tables/aggregation-entropy.csv").open())
        assert len({row["entropy"] for row in entropies if row["encoder"] not in WITHOUT_CLS}) == len(KINDS) - len(WITHOUT_CLS)
        assert block_of(project / "features/simmim-b16-imagenet-train") == 8
        metrics = read_result(project / "probes/imagenet/ijepa-h14/abmilp/metrics.json")
        assert metrics["recipe"]["epochs"] == 50  # of ViT-H; those of the data set are one here
        recipe = read_result(project / "studies/imagenet/one-percent/mae-b16/cls/metrics.json")["recipe"]
        assert (recipe["optimiser"], recipe["batch_size"]) == ("sgd", 1024)

    def test_every_data_set(self, project: Path) -> None:
        edit(project, smaller(["mae-b16"], [*PARAMS["datasets"]]))
        names = of_sets(*(name for name in PARAMS["datasets"] if name != "imagenet"))
        run(project, "dvc", "repro", *(f"table@{name}" for name in names))
        assert all(check_cells(project / "tables" / name) for name in names)
        for name, values in datasets_of(PARAMS).items():
            for head in ("cls", "average", "abmilp"):
                metrics = read_result(project / "probes" / name / "mae-b16" / head / "metrics.json")
                assert values["metric"] in metrics
                expected = ("sgd", 1024) if values["preset"] == "small-sgd" else ("lars", 16384)
                assert (metrics["recipe"]["optimiser"], metrics["recipe"]["batch_size"]) == expected
