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


def recipe_of(params: dict[str, Any], head: str, encoder: str | None, dataset: str | None) -> Recipe:
    plans, _ = plans_and_run([head], params, {}, {}, common_layers(params, encoder, dataset))
    return plans[head].recipe


class TestTraining:
    def test_a_preset_of_the_data_set_replaces_the_recipe_of_probe(self, params: dict[str, Any]) -> None:
        assert recipe_of(params, "cls", "mae-b16", "imagenet") == Recipe(**PRESETS["mae-lars"])
        assert recipe_of(params, "cls", "mae-b16", "cub") == Recipe(**PRESETS["small-sgd"])

    def test_the_encoder_wins_over_the_data_set_and_the_head_over_both(self, params: dict[str, Any]) -> None:
        assert recipe_of(params, "cls", "mae-h14", "imagenet") == Recipe(**{**PRESETS["mae-lars"], "epochs": 50})
        assert recipe_of(params, "abmilp", "mae-h14", "imagenet").epochs == 11
        assert recipe_of(params, "abmilp", "mae-h14", "imagenet").base_lr == 0.5

    def test_a_study_wins_over_its_encoder(self, params: dict[str, Any]) -> None:
        plans, _ = plans_of_study(params, "deep", encoder="mae-h14", dataset="imagenet")
        assert plans["abmilp"].recipe == Recipe(**{**PRESETS["mae-lars"], "epochs": 5, "warmup_epochs": 1})

    def test_without_names_probe_alone_counts(self, params: dict[str, Any]) -> None:
        assert recipe_of(params, "cls", None, None) == Recipe(optimiser="sgd", base_lr=0.03, epochs=40, warmup_epochs=4)

    def test_images_per_batch_of_an_encoder_are_of_its_extraction(self, params: dict[str, Any]) -> None:
        assert recipe_of(params, "cls", "mae-h14", "few").batch_size == Recipe().batch_size

    def test_parameters_of_the_run_come_from_layers_too(self, params: dict[str, Any]) -> None:
        _, of_run = plans_and_run(["cls"], params, {}, {}, common_layers(params, "simmim-b16", "few"))
        assert of_run == {"percent": 1, "block": 8}

    def test_where_each_value_comes_from(self, params: dict[str, Any]) -> None:
        given = of_head(params, "abmilp", "mae-h14", "imagenet")
        sources = {name: one.where for name, one in given.items()}
        own = dict.fromkeys(("epochs", "base_lr", "aggregator"), "heads.abmilp")
        assert sources == {"seeds": "probe", **dict.fromkeys(("preset", "metric"), "datasets.imagenet"), **own}

    @pytest.mark.parametrize(
        ("encoder", "dataset", "says"),
        [
            ("mae-b17", None, "unknown encoder 'mae-b17'; did you mean 'mae-b16'?"),
            (None, "cab", "unknown data set 'cab'; did you mean 'cub'?"),
        ],
    )
    def test_unknown_names(self, encoder: str | None, dataset: str | None, says: str, params: dict[str, Any]) -> None:
        with pytest.raises(BeyondClsError, match=says.replace("?", r"\?")):
            common_layers(params, encoder, dataset)

    def test_a_metric_that_the_images_cannot_have(self, params: dict[str, Any]) -> None:
        check_metric(params, "imagenet", is_multilabel=False)
        check_metric(params, "cub", is_multilabel=True)
        with pytest.raises(BeyondClsError, match=r"datasets.imagenet.metric is top1, but its images have several labels each"):
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

    @pytest.mark.parametrize(("split", "rate"), [("train", 0.3), ("test", None)])
    def test_stochastic_depth_is_of_training_images_wherever_it_is(
        self, split: str, rate: float | None, params: dict[str, Any]
    ) -> None:
        params["extract"] |= {"drop_path": 0.3}
        given = resolve_extraction(params, "mae-b16", "cub", split).get("drop_path")
        assert (given and given.value) == rate

    def test_a_start_of_an_encoder_wins_over_the_preset_of_a_data_set(self, params: dict[str, Any]) -> None:
        layers = {encoder: common_layers(params, encoder, "imagenet") for encoder in ("simmim-b16", "mae-b16")}
        inits = {e: plans_and_run(["abmilp"], params, {}, {}, layers[e])[0]["abmilp"].head.init for e in layers}
        assert inits == {"simmim-b16": "small", "mae-b16": "uniform"}

    def test_splits_are_called_as_the_data_set_says(self, params: dict[str, Any]) -> None:
        given = of_extraction(params, "mae-b16", "imagenet", "test")
        assert (given["data"].value, given["split"].value) == ("images/imagenet", "val")
        assert of_extraction(params, "mae-b16", "cub", "test")["form"].value == "cub"


class TestFiles:
    def test_one_for_each_stage(self, params: dict[str, Any], tmp_path: Path) -> None:
        n = write_recipes(params, tmp_path / "recipes")
        files = {str(file.relative_to(tmp_path / "recipes")) for file in (tmp_path / "recipes").rglob("*.json")}
        assert len(files) == n == 3 + 3 + 3 * 3 * 2 + 3 * 3 * 3 + 3 * 3 + 1
        assert {"probes/cub/mae-h14/abmilp.json", "extract/simmim-b16-few-test.json", "studies/deep.json"} <= files
        of_study = json.loads((tmp_path / "recipes/studies/deep.json").read_text())
        assert of_study["abmilp"]["epochs"] == 5

    def test_what_else_is_there_stays(self, params: dict[str, Any], tmp_path: Path) -> None:
        """Results of the form in which stages write them, too."""
        result = tmp_path / "probes/cub/mae-b16/cls/metrics.json"
        result.parent.mkdir(parents=True)
        result.write_text('{\n "top1": 50.0\n}\n')
        write_recipes(params, tmp_path)
        write_recipes({**params, "datasets": ["few"], "studies": {}}, tmp_path)
        assert result.read_text() == '{\n "top1": 50.0\n}\n'

    @pytest.mark.parametrize("linked", ["encoders", "probes/cub", "probes/cub/mae-b16"])
    def test_nothing_is_written_where_a_link_leads(self, linked: str, params: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "recipes" / linked).parent.mkdir(parents=True)
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs/cls.json").write_text("{}\n")
        (tmp_path / "recipes" / linked).symlink_to(tmp_path / "theirs")
        with pytest.raises(BeyondClsError, match=rf"recipes/{linked} is a link to .*theirs, .*; remove it"):
            write_recipes(params, tmp_path / "recipes")
        assert {file.name: file.read_text() for file in (tmp_path / "theirs").iterdir()} == {"cls.json": "{}\n"}

    def test_the_folder_itself_may_be_a_link_and_a_file_that_is_one_is_replaced(
        self, params: dict[str, Any], tmp_path: Path
    ) -> None:
        (tmp_path / "disk/encoders").mkdir(parents=True)
        (tmp_path / "recipes").symlink_to(tmp_path / "disk")
        (tmp_path / "theirs.json").write_text("{}\n")
        (tmp_path / "disk/encoders/mae-b16.json").symlink_to(tmp_path / "theirs.json")
        write_recipes(params, tmp_path / "recipes")
        assert (tmp_path / "theirs.json").read_text() == "{}\n"
        assert not (tmp_path / "disk/encoders/mae-b16.json").is_symlink()

    def test_only_what_a_change_concerns_is_written_otherwise(self, params: dict[str, Any]) -> None:
        before = dict(all_recipes(params))
        params["datasets"]["cub"]["preset"] = "mae-lars"
        changed = {name for name, content in all_recipes(params) if content != before[name]}
        of_heads = {f"probes/cub/{encoder}/{head}" for encoder in params["encoders"] for head in ("cls", "average", "abmilp")}
        assert changed == of_heads | {f"training/cub/{encoder}" for encoder in params["encoders"]}

    def test_a_value_in_another_layer_is_the_same_request(self, params: dict[str, Any]) -> None:
        before = dict(all_recipes(params))
        for name in ("imagenet", "cub", "few"):
            params["datasets"][name]["seeds"] = params["probe"]["seeds"]
        assert dict(all_recipes(params)) == before

    def test_a_list_of_data_sets_is_as_good(self, params: dict[str, Any]) -> None:
        assert datasets_of({"datasets": ["a", "b"]}) == datasets_of({"datasets": {"a": None, "b": {}}})

    @pytest.mark.parametrize(
        ("study", "says"),
        [
            ({"dataset": "cub"}, "has encoder None, expected .*add e.g. encoder: mae-b16"),
            ({"encoder": "mae-b16"}, "has dataset None"),
        ],
    )
    def test_studies_that_do_not_say_where(self, study: dict[str, Any], says: str, params: dict[str, Any]) -> None:
        params["studies"] = {"s": {"study": "x", "heads": {"cls": {}}, **study}}
        with pytest.raises(BeyondClsError, match=says):
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
        ],
    )
    def test_shows(self, options: str, rows: list[str], command: Any) -> None:
        status, out, err = command("params", *options.split())
        assert status == 0, err
        assert set(rows) <= {" ".join(line.split()) for line in out.splitlines()}

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ("--head clss", "unknown head 'clss'"),
            ("--study dep", "unknown study 'dep'"),
            ("--encoder mae-b16 --split val", "--split is 'val', expected train or test"),
            ("--results probes", "--results probes are made beside what --out writes; give it, too"),
        ],
    )
    def test_mistakes(self, options: str, says: str, command: Any) -> None:
        status, _, err = command("params", *options.split())
        assert status == 1
        assert says in err

    def test_writes(self, command: Any) -> None:
        assert command("params", "--out", "recipes")[1] == "recipes: 61 files\n"
        assert yaml.safe_load(Path("recipes/probes/cub/mae-b16/cls.json").read_text())["preset"] == "small-sgd"

    def test_makes_folders_of_results(self, command: Any) -> None:
        Path("probes/cub").mkdir(parents=True)
        assert command("params", "--out", "recipes", "--results", "probes,divergence")[0] == 0
        assert {path.name for path in Path("probes").iterdir()} == {"cub", "README.md"}
        assert Path("divergence/README.md").read_text().startswith("Results that `dvc repro` writes to divergence/DATASET")

    def test_a_note_of_somebody_else_stays(self, command: Any) -> None:
        Path("README.md").write_text("mine\n")
        Path("probes").mkdir()
        Path("probes/README.md").symlink_to("nowhere")
        assert command("params", "--out", "recipes", "--results", ".,probes")[0] == 0
        assert Path("README.md").read_text() == "mine\n"
        assert not Path("nowhere").exists()
