"""What params.yaml asks of a stage: which layer wins, where a value comes from, and the files that stages depend on."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.parameters.datasets import check_metric, datasets_of
from pipelines.parameters.extraction import from_params, resolve_extraction
from pipelines.parameters.groups import plans_of_study
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.layers import common_layers
from pipelines.parameters.params import read_params
from pipelines.parameters.recipes import all_recipes, of_extraction, of_head, write_recipes
from probe.recipe import PRESETS, Recipe
from store import BeyondClsError
from tests.extract.pictures import write_file

FILE = """
data: images
datasets:
  imagenet: { test: val, preset: mae-lars, metric: top1 }
  cub: { preset: small-sgd, views: 4, form: cub }
  few: { percent: 1, epochs: 7 }
encoders:
  mae-b16: {}
  mae-h14: { epochs: 50, batch_size: 32, amp: bf16 }
  simmim-b16: { block: 8, views: 2, drop_path: 0.1, init: small }
extract: { dtype: float16, batch_size: 128, views: 1 }
cls_heads: { cls: {} }
heads: { average: {}, abmilp: { base_lr: 0.5, epochs: 11 } }
probe: { optimiser: sgd, base_lr: 0.03, epochs: 40, warmup_epochs: 4, seeds: [0, 1, 2] }
studies:
  deep: { study: variants, dataset: imagenet, encoder: mae-h14, heads: { abmilp: { depth: 2 } }, epochs: 5, warmup_epochs: 1 }
"""


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "params.yaml").write_text(FILE)
    return read_params(tmp_path / "params.yaml")


LARS = PRESETS["mae-lars"]
SGD = {"optimiser": "sgd", "base_lr": 0.03, "epochs": 40, "warmup_epochs": 4}


class TestTraining:
    @pytest.mark.parametrize(
        ("head", "encoder", "dataset", "recipe"),
        [
            ("cls", "mae-b16", "imagenet", LARS),  # the preset of the data set replaces the recipe of probe
            ("cls", "mae-b16", "cub", PRESETS["small-sgd"]),
            ("cls", "mae-h14", "imagenet", {**LARS, "epochs": 50}),  # the encoder wins over the data set, …
            ("abmilp", "mae-h14", "imagenet", {**LARS, "epochs": 11, "base_lr": 0.5}),  # … and the head over both
            ("cls", None, None, SGD),
            (
                "cls",
                "mae-h14",
                "few",
                {**SGD, "epochs": 50, "order": "own"},
            ),  # images per batch of an encoder are of its extraction
        ],
    )
    def test_layers(self, head: str, encoder: str | None, dataset: str | None, recipe: dict, params: dict[str, Any]) -> None:
        plans, _ = plans_and_run([head], params, {}, {}, common_layers(params, encoder, dataset))
        assert plans[head].recipe == Recipe(**recipe)

    def test_a_study_wins_over_its_encoder(self, params: dict[str, Any]) -> None:
        plans, _ = plans_of_study(params, "deep", encoder="mae-h14", dataset="imagenet")
        assert plans["abmilp"].recipe == Recipe(**{**LARS, "epochs": 5, "warmup_epochs": 1})

    def test_parameters_of_the_run_and_a_start_that_wins_over_a_preset_come_from_layers_too(
        self, params: dict[str, Any]
    ) -> None:
        _, of_run = plans_and_run(["cls"], params, {}, {}, common_layers(params, "simmim-b16", "few"))
        assert of_run == {"percent": 1, "block": 8}
        for encoder, init in (("simmim-b16", "small"), ("mae-b16", "uniform")):
            plans, _ = plans_and_run(["abmilp"], params, {}, {}, common_layers(params, encoder, "imagenet"))
            assert plans["abmilp"].head.init == init

    def test_where_each_value_comes_from(self, params: dict[str, Any]) -> None:
        sources = {name: one.where for name, one in of_head(params, "abmilp", "mae-h14", "imagenet").items()}
        own = dict.fromkeys(("epochs", "base_lr", "aggregator"), "heads.abmilp")
        assert sources == {"seeds": "probe", **dict.fromkeys(("preset", "metric"), "datasets.imagenet"), **own}

    @pytest.mark.parametrize(("encoder", "dataset", "says"), [("mae-b17", None, "'mae-b16'"), (None, "cab", "'cub'")])
    def test_unknown_names(self, encoder: str | None, dataset: str | None, says: str, params: dict[str, Any]) -> None:
        with pytest.raises(BeyondClsError, match=rf"did you mean {says}\?"):
            common_layers(params, encoder, dataset)

    def test_a_metric_that_the_images_cannot_have(self, params: dict[str, Any]) -> None:
        check_metric(params, "imagenet", is_multilabel=False)
        check_metric(params, "cub", is_multilabel=True)
        with pytest.raises(BeyondClsError, match=r"datasets.imagenet.metric is top1, but its images have several labels"):
            check_metric(params, "imagenet", is_multilabel=True)


class TestExtraction:
    @pytest.mark.parametrize(
        ("encoder", "dataset", "split", "expected"),
        [
            ("mae-b16", "imagenet", "train", {}),
            ("mae-b16", "cub", "train", {"views": 4}),
            ("mae-b16", "cub", "test", {}),
            ("mae-h14", "imagenet", "test", {"batch_size": 32, "amp": "bf16"}),
            ("simmim-b16", "cub", "train", {"views": 2, "drop_path": 0.1, "blocks": [8]}),
            ("simmim-b16", "cub", "test", {"blocks": [8]}),
        ],
    )
    def test_layers(self, encoder: str, dataset: str, split: str, expected: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "params.yaml").write_text(FILE)
        loading, options = from_params(tmp_path / "params.yaml", encoder, dataset, {"split": split})
        assert (loading, options) == ({}, {"dtype": "float16", "batch_size": 128, "views": 1, **expected})

    def test_stochastic_depth_is_of_training_images_wherever_it_is(self, params: dict[str, Any]) -> None:
        params["extract"] |= {"drop_path": 0.3}
        assert resolve_extraction(params, "mae-b16", "cub", "train")["drop_path"].value == 0.3
        assert "drop_path" not in resolve_extraction(params, "mae-b16", "cub", "test")

    def test_splits_are_called_as_the_data_set_says(self, params: dict[str, Any]) -> None:
        given = of_extraction(params, "mae-b16", "imagenet", "test")
        assert (given["data"].value, given["split"].value) == ("images/imagenet", "val")
        assert of_extraction(params, "mae-b16", "cub", "test")["form"].value == "cub"


class TestFiles:
    def test_one_for_each_stage_and_what_else_is_there_stays(self, params: dict[str, Any], tmp_path: Path) -> None:
        """Results of the form in which stages write them, too."""
        result = write_file(tmp_path / "recipes/probes/cub/mae-b16/cls/metrics.json", b'{\n "top1": 50.0\n}\n')
        n = write_recipes(params, tmp_path / "recipes")
        files = {str(file.relative_to(tmp_path / "recipes")) for file in (tmp_path / "recipes").rglob("*.json")}
        assert len(files) - 1 == n == 3 + 3 + 3 * 3 * 2 + 3 * 3 * 3 + 3 * 3 + 1
        assert {"probes/cub/mae-h14/abmilp.json", "extract/simmim-b16-few-test.json"} <= files
        assert json.loads((tmp_path / "recipes/studies/deep.json").read_text())["abmilp"]["epochs"] == 5
        write_recipes({**params, "datasets": ["few"], "studies": {}}, tmp_path / "recipes")
        assert result.read_bytes() == b'{\n "top1": 50.0\n}\n'

    @pytest.mark.parametrize("linked", ["encoders", "probes/cub", "probes/cub/mae-b16"])
    def test_nothing_is_written_where_a_link_leads(self, linked: str, params: dict[str, Any], tmp_path: Path) -> None:
        theirs = write_file(tmp_path / "theirs/cls.json", b"{}\n")
        (tmp_path / "recipes" / linked).parent.mkdir(parents=True)
        (tmp_path / "recipes" / linked).symlink_to(theirs.parent)
        with pytest.raises(BeyondClsError, match=rf"recipes/{linked} is a link to .*theirs, .*; remove it"):
            write_recipes(params, tmp_path / "recipes")
        assert {file.name: file.read_text() for file in theirs.parent.iterdir()} == {"cls.json": "{}\n"}

    def test_the_folder_itself_may_be_a_link_and_a_file_that_is_one_is_replaced(
        self, params: dict[str, Any], tmp_path: Path
    ) -> None:
        theirs = write_file(tmp_path / "theirs.json", b"{}\n")
        (tmp_path / "disk/encoders").mkdir(parents=True)
        (tmp_path / "recipes").symlink_to(tmp_path / "disk")
        (tmp_path / "disk/encoders/mae-b16.json").symlink_to(theirs)
        write_recipes(params, tmp_path / "recipes")
        assert theirs.read_text() == "{}\n"
        assert not (tmp_path / "disk/encoders/mae-b16.json").is_symlink()

    def test_only_what_a_change_concerns_is_written_otherwise(self, params: dict[str, Any]) -> None:
        """A value in another layer is the same request."""
        before = dict(all_recipes(params))
        for name in ("imagenet", "cub", "few"):
            params["datasets"][name]["seeds"] = params["probe"]["seeds"]
        assert dict(all_recipes(params)) == before
        params["datasets"]["cub"]["preset"] = "mae-lars"
        changed = {name for name, content in all_recipes(params) if content != before[name]}
        of_heads = {f"probes/cub/{encoder}/{head}" for encoder in params["encoders"] for head in ("cls", "average", "abmilp")}
        assert changed == of_heads | {f"training/cub/{encoder}" for encoder in params["encoders"]}

    def test_a_list_of_data_sets_is_as_good(self) -> None:
        assert datasets_of({"datasets": ["a", "b"]}) == datasets_of({"datasets": {"a": None, "b": {}}})

    @pytest.mark.parametrize(("named", "says"), [("dataset", "encoder None, .*encoder: mae-b16"), ("encoder", "dataset None")])
    def test_studies_that_do_not_say_where(self, named: str, says: str, params: dict[str, Any]) -> None:
        params["studies"] = {"s": {"study": "x", "heads": {"cls": {}}, named: "cub"}}
        with pytest.raises(BeyondClsError, match=f"has {says}"):
            list(all_recipes(params))


class TestCommand:
    @pytest.fixture(autouse=True)
    def project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "params.yaml").write_text(FILE)

    @pytest.mark.parametrize(
        ("options", "rows"),
        [
            ("--encoder mae-h14 --dataset imagenet --head cls", ["epochs 50 encoders.mae-h14"]),
            ("--dataset imagenet --head cls", ["batch_size 16384 preset mae-lars"]),
            ("--head cls", ["epochs 40 probe", "order shared default"]),
            ("--study deep", ["epochs 5 studies.deep", "depth 2 heads.abmilp"]),
            (
                "--encoder simmim-b16 --dataset cub --split train",
                ["blocks 8 encoders.simmim-b16", "data images/cub datasets.cub"],
            ),
            ("", ["datasets imagenet, cub, few", "studies deep"]),
            ("--head clss", "'clss'"),
            ("--study dep", "'dep'"),
            ("--encoder mae-b16 --split val", "--split is 'val', expected train or test"),
            ("--results probes", "--out"),
        ],
    )
    def test_shows(self, options: str, rows: list[str] | str, command: Any) -> None:
        status, out, err = command("params", *options.split())
        assert status == int(isinstance(rows, str)), err
        if isinstance(rows, str):
            assert rows in err
        else:
            assert set(rows) <= {" ".join(line.split()) for line in out.splitlines()}

    def test_writes_recipes_and_makes_folders_of_results(self, command: Any, tmp_path: Path) -> None:
        """A note of somebody else stays."""
        write_file(tmp_path / "mine/README.md", b"mine\n")
        for folder in ("probes/cub", "linked"):
            (tmp_path / folder).mkdir(parents=True)
        Path("linked/README.md").symlink_to("nowhere")
        assert command("params", "--out", "recipes", "--results", "probes,divergence,mine,linked")[1] == "recipes: 61 files\n"
        assert yaml.safe_load(Path("recipes/probes/cub/mae-b16/cls.json").read_text())["preset"] == "small-sgd"
        assert {path.name for path in Path("probes").iterdir()} == {"cub", "README.md"}
        assert "divergence/DATASET" in Path("divergence/README.md").read_text()
        assert Path("mine/README.md").read_text() == "mine\n"
        assert not Path("linked/nowhere").exists()
