"""tables/results.csv: every trained head in a row, whatever its metrics record."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import xxhash

from pipelines.report.collect import Folders, collect
from pipelines.report.results import COLUMNS, to_csv
from probe.result_files import read_result, write_result
from store import BeyondClsError
from store.moving.receipt import Receipt
from tests.features import write_features
from tests.pipelines.report.written import write_probe

ROOT = Path(__file__).resolve().parents[3]
OPTIONAL = ("command", "selected", "notes", "test_images")  # what need not be recorded


def rows_of(**folders: Any) -> list[dict[str, str]]:
    """As another program reads them."""
    return list(csv.DictReader(io.StringIO(to_csv(collect(Folders(**folders)))), strict=True))


def test_a_head_with_all_that_can_be_recorded(tmp_path: Path) -> None:
    receipt = Receipt.from_store(write_features(tmp_path / "features/training"))
    (tmp_path / "receipts").mkdir()
    receipt.write(tmp_path / "receipts/training.json")
    (tmp_path / "receipts/training.check.json").write_text("{}")
    grid = [{"base_lr": 0.1, "mean": 50.0, "std": 0.5}, {"base_lr": 1.0, "mean": None}]
    recipe = {"epochs": 90, "batch_size": 1024, "optimiser": "sgd", "momentum": 0.0, "order": "shared", "drop_last": True}
    folder = write_probe(
        tmp_path / "probes/birds",
        "mae",
        "abmilp",
        51.5,
        options={"depth": 2, "activation": '=SUM(A1), "tanh"\n'},
        recipe={**recipe, "base_lr": 0.1, "weight_decay": 0.0, "of_a_later_version": 7},
        selected={"base_lr": 0.1, "weight_decay": 0.0, "on": "10 %", "by": "top1", "n_images": 5, "candidates": grid},
        subset={"percent": 1, "seed": 0},
        features={"training": receipt.key, "test": "test-mae"},
        cost={"parameters": 193, "parameters_classifier": 30, "flops_per_image": 1000, "bytes_per_image": None},
        block=5,
        train_top1={"mean": 60.0, "std": 0.25, "values": [60.0, 59.75, 60.25]},
    )
    metrics = (folder / "description.json").read_bytes()
    timing = {"ms_per_image": 0.25, "n_images": 64, "device": "cpu", "threads": 2}
    timing |= {"training_s": 12.5, "n_trained_together": 3}
    (folder / "timing.json").write_text(json.dumps(timing | {"metrics": xxhash.xxh3_128_hexdigest(metrics)}))
    (row,) = rows_of(probes=tmp_path / "probes/birds", dataset="birds", receipts=tmp_path / "receipts")
    digest = xxhash.xxh3_128_hexdigest((tmp_path / "receipts/training.json").read_bytes())
    plain = (
        "encoder=mae recorded_encoder=mae dataset=birds head=abmilp aggregator=abmilp block=5 metric=top1 mean=51.5 std=0.5 "
        "n_seeds=3 best_epoch_on_test_images=21.0 best_epoch_on_test_images_std=1.0 top5=91.5 top5_std=0.5 entropy=1.1 "
        "entropy_std=0.5 train_top1=60.0 train_top1_std=0.25 preset=small-sgd base_lr=0.1 weight_decay=0.0 "
        "of_a_later_version=7 selected_by=top1 n_selected_on=5 n_training=50 n_test=7 n_classes=3 n_tokens=4 parameters=193 "
        "parameters_classifier=30 flops_per_image=1000 ms_per_image=0.25 training_s=12.5 n_trained_together=3 timed_on=cpu "
        "timed_with_threads=2 test_key=test-mae"
    )
    assert row == dict.fromkeys(COLUMNS, "") | dict(part.split("=") for part in plain.split()) | {
        "family": "masked image modelling",
        "options": json.dumps({"depth": 2, "activation": '=SUM(A1), "tanh"\n'}),
        "seeds": "[0, 1, 2]",
        "values": "[51.0, 51.5, 52.0]",
        "best_epochs_on_test_images": "[2, 2, 2]",
        **{name: str(value) for name, value in recipe.items()},
        "grid": json.dumps(grid),
        "selected_on": "10 %",
        "subset": '{"percent": 1, "seed": 0}',
        "training_key": receipt.key,
        "training_receipt": digest,
        "command": "beyondcls probe --head abmilp --out probes/<mae>",
    }


def test_damaged_receipt(tmp_path: Path) -> None:
    write_probe(tmp_path / "probes", "mae", "cls", 50.0)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(BeyondClsError, match=r"a\.json or a table next to it is damaged .* `beyondcls extract`"):
        rows_of(probes=tmp_path / "probes", receipts=tmp_path)


def test_heads_of_every_kind_appear_once(tmp_path: Path) -> None:
    write_probe(tmp_path / "probes/birds", "mae", "cls", 50.0, features={"training": "t", "test": "u"})
    write_probe(tmp_path / "probes/cars", "mae", "cls", 50.0, test_images="those")
    write_probe(tmp_path / "studies/poolings", "mae", "cls", 49.0, seeds=(0,), features={"training": "t", "test": "u"})
    write_probe(tmp_path / "studies/views", "mae", "cls", 47.0, features={"training": "of other runs", "test": "u"})
    write_probe(tmp_path / "studies/blocks", "mae", "cls", 48.0, test_images="those", features={"training": "b", "test": "c"})
    write_probe(tmp_path / "probes/cars", "mae", "cls-knn", 40.0, seeds=(), protocol={"name": "knn", "k": 20})
    mean_ap = {"mean": 30.0, "std": 1.0, "values": [29.0, 31.0]}
    several = write_probe(tmp_path / "probes/scenes", "mae", "cls", 0.0, seeds=(0, 1), map=mean_ap)
    (several / "curves.csv").write_text("seed,epoch,loss,map\n0,1,2.0,35.0\n0,2,1.0,29.0\n1,1,2.0,31.0\n1,2,2.0,31.0\n")
    (tmp_path / "probes/cars/mae/absent").mkdir()
    write_result(tmp_path / "probes/cars/mae/absent/metrics.json", {"absent": ["cls"]})
    rows = rows_of(
        probes=tmp_path / "probes/birds", dataset="birds", datasets=(tmp_path / "probes",), studies=(tmp_path / "studies",)
    )
    names = ("dataset", "study", "head", "metric", "mean", "std", "protocol", "epochs")
    names += ("best_epoch_on_test_images", "best_epochs_on_test_images")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("birds", "", "cls", "top1", "50.0", "0.5", "", "2", "21.0", "[2, 2, 2]"),
        ("cars", "", "cls", "top1", "50.0", "0.5", "", "2", "21.0", "[2, 2, 2]"),
        ("cars", "", "cls-knn", "top1", "40.0", "", '{"name": "knn", "k": 20}', "", "", ""),
        ("scenes", "", "cls", "map", "30.0", "1.0", "", "2", "33.0", "[1, 1]"),
        ("cars", "blocks", "cls", "top1", "48.0", "0.5", "", "2", "21.0", "[2, 2, 2]"),
        ("birds", "poolings", "cls", "top1", "49.0", "", "", "2", "20.0", "[2]"),
        ("", "views", "cls", "top1", "47.0", "0.5", "", "2", "21.0", "[2, 2, 2]"),
    ]


def test_what_was_not_recorded_is_empty(tmp_path: Path) -> None:
    folder = write_probe(tmp_path, "mine", "average", 40.0)
    metrics = read_result(folder / "metrics.json")
    write_result(folder / "metrics.json", {name: value for name, value in metrics.items() if name not in OPTIONAL})
    (folder / "curves.csv").unlink()
    (row,) = rows_of(probes=tmp_path)
    empty = ("grid", "best_epoch_on_test_images", "command", "dataset")
    assert (row["mean"], *(row[name] for name in empty)) == ("40.0", "", "", "", "")


def test_of_the_quickstart() -> None:
    """Its older heads did not drop the last batch, which is no preset of this version."""
    rows = rows_of(probes=ROOT / "quickstart/full/probes/cifar10-60000")
    presets = {(row["encoder"], row["head"]): row["preset"] for row in rows}
    assert len(rows) == len(presets) == 56
    assert {presets[encoder, head] for encoder, head in presets if head in ("cls", "average", "abmilp")} == {"small-sgd"}
    assert presets["quickstart-mae", "ep"] == ""
    assert all(float(row["mean"]) > 20 and row["n_training"] and row["command"].startswith("beyondcls probe") for row in rows)
