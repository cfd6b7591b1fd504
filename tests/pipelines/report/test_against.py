"""Published numbers beside ours: how they are read, what they are compared with, and that none is dropped in silence."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm

from extract.encoders import ENCODERS
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.published.row import COLUMNS, SHIPPED, PublishedRow, paper_rows, published_rows, read_rows
from pipelines.report.sections.against import STEPLESS, Beside, match_published
from probe.closed import CLOSED
from probe.recipe import PRESETS, settings_of
from store import BeyondClsError
from tests.pipelines.report.written import write_correct, write_probe

ROOT = Path(__file__).resolve().parents[3]
HEADER = ",".join(COLUMNS)
ROW = PublishedRow("mae-b16", "imagenet", "cls", "", "top1", 67.8, "a paper")
# What the paper states of all of its numbers.
MEASURED = {"crops": "fresh", "n_training": "1281167", "resolution": "224", "frame": "center 0.875"}
# What a head of ours records that was trained and measured as the paper's are, but for crops.
ALIKE: dict[str, Any] = {
    "recipe": {**settings_of("mae-lars"), "base_lr": 0.1},
    "n_training": 1_281_167,
    "transform": {"input_size": [3, 224, 224], "crop_mode": "center", "crop_pct": 0.875},
    "block": 11,
}


def inputs_of(folders: Folders, *rows: PublishedRow) -> Inputs:
    return replace(collect(folders), against={"published": rows})


def lacking(inputs: Inputs) -> list[tuple[str, str, str]]:
    """What none of ours has, its name, and the nearest one."""
    matches, differing, unmatched = match_published(inputs)
    assert not matches + differing
    return [(entry.lacks, entry.name, entry.nearest) for entry in unmatched]


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"line 1: there is no column 'encoder' among none"),
            ("encoder,data set,head\n", r"line 1: there is no column 'dataset' among .*; did you mean it by 'data set'\?"),
            (f"{HEADER}\n", "has no rows"),
            (f"{HEADER},epochs\na,b,c,,top1,7,,,9O\n", "line 2: epochs is '9O', expected a whole number"),
            (f"{HEADER},options\na,b,c,,top1,7,,,12\n", "line 2: options have '12', expected NAME=VALUE"),
            (f"{HEADER}\na,b,c,,top1,7l.6,,\n", r"line 2: value is '7l\.6', expected a number"),
            (f"{HEADER}\na,b,c,,top1,1,,\na,b,c,,top1,nan,,\n", "line 3: value is 'nan', expected a number"),
            (f"{HEADER}\na,b,,,top1,1,,\n", "line 2: head is empty"),
            (f"{HEADER}\na,b,c,,top1,,,\n", "line 2: value is empty"),
            (f"{HEADER}\na,b,c,,top1\n", "line 2 has 5 cells, expected 8"),
            (f"{HEADER}\na,b,c,,top1,1,Author, Title,,\n", "line 2 has 10 cells, expected 8"),
            (f'{HEADER}\na,b,c,,top1,1,"x"y,\n', r"is not a readable \.csv file \(.*\), expected UTF-8 text"),
            (b"encoder\xff", r"is not a readable \.csv file"),
        ],
    )
    def test_refused(self, text: str | bytes, message: str, tmp_path: Path) -> None:
        file = tmp_path / "published.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(BeyondClsError, match=rf"^{re.escape(str(file))},? {message}"):
            read_rows(file)

    def test_columns_in_any_order_beside_others(self, tmp_path: Path) -> None:
        names = ["year", *reversed(COLUMNS)]
        with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as target:
            writer = csv.writer(target)
            writer.writerows([names, [2024, *(getattr(ROW, name) for name in names[1:])]])
        assert published_rows([str(tmp_path / "a.csv")]) == {"a.csv": (ROW,)}

    def test_no_such_file_or_two_of_one_name(self, beyondcls, tmp_path: Path) -> None:
        said = beyondcls("report", "--probes", tmp_path / "probes", "--against", "papers.csv", fails=True)
        assert "there is no file 'papers.csv'" in said
        assert ", ".join(SHIPPED) in said
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "x.csv").write_text(f"{HEADER}\na,b,c,,top1,1,,\n")
        with pytest.raises(BeyondClsError, match=r"has the name of another one, 'x\.csv', expected each once; rename one"):
            published_rows([str(tmp_path / "a/x.csv"), str(tmp_path / "b/x.csv")])


class TestMatching:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> Folders:
        """ImageNet with a main head, one named otherwise, variants of an aggregator, a protocol without steps, and a study."""
        probes = tmp_path / "imagenet"
        write_probe(probes, "mae-b16", "cls", 67.0, std=0.5)
        write_probe(probes, "mine", "pooled", 71.0, recorded="mae-h14", aggregator="abmilp", seeds=(0,))
        for queries in (8, 32):
            write_probe(probes, "mae-b16", f"ep-{queries}", 75.0, aggregator="ep")
        write_probe(probes, "mae-b16", "neighbours", 35.0, aggregator="cls", seeds=(), protocol={"name": "knn"})
        write_probe(tmp_path / "studies/poolings", "mae-b16", "cls", 66.0)
        return Folders(probes, dataset="imagenet", studies=(tmp_path / "studies",))

    def matches(self, folders: Folders, row: PublishedRow) -> list[tuple[str, str, str]]:
        matches, differing, unmatched = match_published(inputs_of(folders, row))
        assert bool(matches) != bool(unmatched)
        assert not differing
        return [(m.result.probe.encoder, m.result.study, m.result.probe.head) for m in matches]

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({}, [("mae-b16", "", "cls"), ("mae-b16", "poolings", "cls")]),
            ({"encoder": "mae-h14", "head": "abmilp"}, [("mine", "", "pooled")]),
            ({"head": "ep-8"}, [("mae-b16", "", "ep-8")]),
            ({"head": "neighbours", "protocol": "knn"}, [("mae-b16", "", "neighbours")]),
            ({"metric": "top1_best_epoch"}, [("mae-b16", "", "cls"), ("mae-b16", "poolings", "cls")]),
        ],
    )
    def test_found(self, changed: dict[str, str], expected: list[tuple[str, str, str]], folders: Folders) -> None:
        assert self.matches(folders, replace(ROW, **changed)) == expected

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({"encoder": "mae-b14"}, ("encoder", "mae-b14", "mae-b16")),
            ({"dataset": "imagenet-1k"}, ("data set", "imagenet-1k", "imagenet")),
            ({"head": "ep"}, ("head", "ep", "ep-8")),  # which of the two is not for this program to say
            ({"protocol": "knn"}, ("protocol", "knn", "of gradient steps")),
            ({"head": "neighbours"}, ("protocol", "of gradient steps", "knn")),
            ({"head": "neighbours", "protocol": "mae-lars"}, ("protocol", "mae-lars", "knn")),
            ({"metric": "top-1"}, ("metric", "top-1", "top1")),
            ({"metric": "map_best_epoch"}, ("metric", "map_best_epoch", "top1_best_epoch")),
        ],
    )
    def test_not_found(self, changed: dict[str, str], expected: tuple[str, str, str], folders: Folders) -> None:
        assert lacking(inputs_of(folders, replace(ROW, **changed))) == [expected]

    def test_a_study_that_the_page_is_about_is_there_once(self, folders: Folders) -> None:
        (study,) = folders.studies
        of_study = replace(folders, probes=study / "poolings")
        assert self.matches(of_study, ROW) == [("mae-b16", "poolings", "cls")]

    def test_data_set_without_a_name(self, folders: Folders) -> None:
        assert lacking(inputs_of(replace(folders, dataset=""), ROW)) == [("data set", "imagenet", "")]

    def test_protocols_without_steps(self) -> None:
        assert set(STEPLESS) == set(CLOSED)


class TestOtherwise:
    """Nothing that was measured in another way is a deviation."""

    def differences(self, folder: Path, row: PublishedRow, head: str = "cls", **recorded: Any) -> list[tuple[str, str, str]]:
        write_probe(folder, "mae-b16", head, 67.0, **{**ALIKE, **recorded})
        matches, differing, unmatched = match_published(inputs_of(Folders(folder, dataset="imagenet"), row))
        assert not unmatched
        assert bool(matches) != bool(differing)
        return [difference for entry in differing for difference in entry.differences]

    @pytest.mark.parametrize(
        ("recorded", "expected"),
        [
            ({}, []),
            (
                {"recipe": {**ALIKE["recipe"], "epochs": 10, "optimiser": "sgd"}},
                [("epochs", "90", "10"), ("optimiser", "lars", "sgd")],
            ),
            ({"recipe": {**ALIKE["recipe"], "base_lr": 0.3, "weight_decay": 1e-4}}, []),
            ({"n_training": 12_811}, [("n_training", "1281167", "12811")]),
            ({"transform": {**ALIKE["transform"], "input_size": [3, 336, 336]}}, [("resolution", "224", "336")]),
            (
                {"transform": {**ALIKE["transform"], "crop_mode": "squash", "crop_pct": 1.0}},
                [("frame", "center 0.875", "squash 1")],
            ),
            ({"block": 8}, [("block", "11", "8")]),
            ({"block": None}, []),
            ({"augmentation": {"n_crops": 0, "evaluation_view": True}}, [("crops", "fresh", "none")]),
            ({"augmentation": {"n_crops": 4, "evaluation_view": False}}, [("crops", "fresh", "stored, 4")]),
            ({"augmentation": {"n_crops": "fresh", "evaluation_view": False}}, []),
        ],
    )
    def test_as_recorded(self, recorded: dict[str, Any], expected: list[tuple[str, str, str]], tmp_path: Path) -> None:
        row = replace(ROW, protocol="mae-lars", block="11", **MEASURED)
        assert self.differences(tmp_path, row, **recorded) == expected

    @pytest.mark.parametrize(
        ("row", "recorded", "expected"),
        [
            ({"protocol": "SGD"}, {}, [("protocol", "SGD", "mae-lars")]),
            ({"protocol": "mae-lars", "epochs": "15"}, {}, [("epochs", "15", "90")]),
            ({"head": "ap-12", "aggregator": "ap", "options": "heads=12"}, {"options": {"heads": 16}}, [("heads", "12", "16")]),
            ({"head": "ap-12", "aggregator": "ap", "options": "heads=12"}, {"options": {"heads": 12}}, []),
            (
                {"head": "ap-1", "aggregator": "ap", "options": "heads=1"},
                {"all_options": {"heads": 12}},
                [("heads", "1", "12")],
            ),
            (
                {"head": "ap", "protocol": "knn", "options": "k=50 temperature=0.07"},
                {"seeds": (), "protocol": {"name": "knn", "temperature": 0.07}, "selected": {"k": 20}},
                [("k", "50", "20")],
            ),
        ],
    )
    def test_of_other_forms(
        self, row: dict[str, str], recorded: dict[str, Any], expected: list[tuple[str, str, str]], tmp_path: Path
    ) -> None:
        published = replace(ROW, **{"head": "ap", **row})
        assert self.differences(tmp_path, published, "ap-x", aggregator="ap", **recorded) == expected

    def test_one_alike_is_enough(self, tmp_path: Path) -> None:
        """Those of a study that were trained otherwise are not listed beside it."""
        write_probe(tmp_path / "imagenet", "mae-b16", "cls", 67.0, **ALIKE)
        write_probe(tmp_path / "studies/one-percent", "mae-b16", "cls", 40.0, **{**ALIKE, "n_training": 12_811})
        folders = Folders(tmp_path / "imagenet", dataset="imagenet", studies=(tmp_path / "studies",))
        matches, differing, _ = match_published(inputs_of(folders, replace(ROW, protocol="mae-lars", **MEASURED)))
        assert [(match.result.study, round(match.difference.mean, 1)) for match in matches] == [("", -0.8)]
        assert not differing


class TestDifference:
    def match(self, folders: Folders, value: float, metric: str = "top1") -> Beside:
        ((match,), _, _) = match_published(inputs_of(folders, replace(ROW, value=value, metric=metric)))
        return match

    @pytest.mark.parametrize("seeds", [(0, 1, 2), (0,)])
    def test_seeds_alone_do_not_tell(self, tmp_path: Path, seeds: tuple[int, ...]) -> None:
        write_probe(tmp_path / "a", "mae-b16", "cls", 67.0, seeds=seeds)
        folders = Folders(tmp_path / "a", dataset="imagenet")
        found = {name: self.match(folders, 67.9, name).difference for name in ("top1", "top5", "top1_best_epoch")}
        assert [one.mean for one in found.values()] == pytest.approx([-0.9, 39.1, 20 + len(seeds) // 2 - 67.9])
        assert {one.sign for one in found.values()} == {None}

    def test_over_test_images(self, tmp_path: Path) -> None:
        """Half of 400 images: about 45 to 55 %, though seeds hardly differ."""
        write_correct(write_probe(tmp_path / "a", "mae-b16", "cls", 50.0), np.tile(np.arange(400) % 2 == 0, (3, 1)))
        folders = Folders(tmp_path / "a", dataset="imagenet")
        signs = {value: self.match(folders, value).difference.sign for value in (42.0, 46.5, 53.5, 58.0)}
        assert signs == {42.0: 1, 46.5: 0, 53.5: 0, 58.0: -1}


class TestPage:
    def test_the_papers_encoders(self, beyondcls, tmp_path: Path, no_plots) -> None:
        """A project with their names: the paper's numbers are shown beside them, and the others are counted."""
        for encoder, head, top1 in (("mae-b16", "cls", 67.6), ("mae-b16", "abmilp", 71.0), ("dino-b16", "cls", 70.0)):
            write_probe(tmp_path / "imagenet", encoder, head, top1, std=0.2, **ALIKE)
        said = beyondcls("report", "--probes", tmp_path / "imagenet", "--against", "paper", "--out", tmp_path / "out")
        n = len(paper_rows())
        rows, unmatched, differing = (
            list(csv.DictReader((tmp_path / f"out/tables/against{of}.csv").read_text().splitlines()))
            for of in ("", "-unmatched", "-differing")
        )
        names = ("group", "encoder", "head", "metric", "published", "within", "protocol")
        assert [" ".join(row[name] for name in names) for row in rows] == [
            "paper mae-b16 cls top1 67.8  mae-lars",
            "paper mae-b16 abmilp top1 71.6  mae-lars",
            "paper dino-b16 cls top1 76.6  mae-lars",
            "paper mae-b16 abmilp top1 71.58  mae-lars",
            "paper mae-b16 abmilp entropy 4.8  mae-lars",
        ]
        assert float(rows[1]["difference"]) == pytest.approx(-0.6)
        assert len(unmatched) == n - 15
        assert f"paper: of {n} published numbers 5 are compared with ours; 10 were measured otherwise" in said
        assert {row["differs"] for row in differing} == {f"depth: {n}, 1" for n in (2, 3, 4)}


class TestShipped:
    def test_paper(self) -> None:
        """Every number of the tables that print one of a head; names are those of the registries."""
        rows = {(row.encoder, row.head, row.metric): row for row in paper_rows()}
        assert {row.encoder for row in rows.values()} - set(ENCODERS) == {"supervised-b16"}
        assert rows["mae-b16", "dino-attention", "entropy"].value == 4.89
        assert rows["capi-l14", "ap-12", "top1"].value == 82.7
        assert ("ijepa-h14", "cls", "top1") not in rows
        assert rows["mae-l16", "cls", "top1"].protocol == "mae-lars-large"
        assert {row.protocol for row in rows.values()} - set(PRESETS) == {"SGD"}

    def test_efficient_probing(self) -> None:
        rows = {(row.encoder, row.head, row.protocol, row.metric): row for row in SHIPPED["efficient-probing"]()}
        assert len(rows) == 156, "each once"
        encoders = {encoder for encoder, *_ in rows}
        assert len(encoders) == 37
        known_to_timm = {e for e in encoders if timm.is_model(e.partition(".")[0]) and timm.get_pretrained_cfg(e) is not None}
        assert encoders - set(ENCODERS) - known_to_timm == {"radio_v2.5-b", "radio_v2.5-l", "DiT-XL/2", "franca_vitl14"}
        assert rows["mae-b16", "cls", "ep-lars", "top1_best_epoch"].value == 67.78
        assert rows["mae-b16", "cls", "knn", "top1"].value == 35.57
        assert rows["dino-b16", "ep-all", "ep-lars", "top1"].value == 77.08
        for (encoder, head, protocol, metric), row in rows.items():
            assert re.search(r"at [0-9a-f]{12}, (results\.csv|logs/\w+/\w+\.txt)$", row.source)
            best = rows.get((encoder, head, protocol, f"{metric}_best_epoch"))
            assert best is None or row.value <= best.value, "the last epoch is none better than the best"
            assert (metric == "top1") == ("epoch " not in row.note), "which epoch the best one is"
