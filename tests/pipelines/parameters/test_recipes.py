"""What params.yaml asks of a stage: which layer wins, where a value comes from, and the files that stages depend on."""

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines import detect, segment
from pipelines.parameters.datasets import TASKS, check_metric, datasets_of, images_of
from pipelines.parameters.dense import of_task, options_of_task
from pipelines.parameters.extraction import from_params, resolve_extraction
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.layers import common_layers
from pipelines.parameters.params import read_params
from pipelines.parameters.recipes import FOLDERS, OPTIONS, all_recipes, write_recipes
from probe.grid import HeadPlan
from probe.recipe import PRESETS, Recipe
from probe.segmentation.logistic import CS
from probe.segmentation.run import LINEAR, Protocols
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
  dino-s16: { crop_pct: 0.9, mean: [0.5, 0.5, 0.5], input_size: 384 }
extract: { dtype: float16, batch_size: 128, views: 1, truths: none }
cls_heads: { cls: {} }
heads: { average: {}, abmilp: { base_lr: 0.5, epochs: 11 } }
probe: { optimiser: sgd, base_lr: 0.03, epochs: 40, warmup_epochs: 4, seeds: [0, 1, 2] }
studies:
  deep: { study: variants, dataset: imagenet, encoder: mae-h14, heads: { abmilp: { depth: 2 } }, epochs: 5, warmup_epochs: 1 }
dense:
  data: streets
  datasets:
    camvid: { test: val, form: camvid, input_size: 336x448, views: 2 }
    shop: { truths: instances, crop_mode: border }
  segment: { camvid: { protocol: [knn, linear], at: [original, 512], ks: [1, 5], epochs: 3, save_maps: 2, cs: null } }
  detect: { shop: { preset: small, epochs: 9, anchors: [16, 32, 64, 128], seeds: [0, 1] } }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parameter file, in the folder that commands are given in."""
    monkeypatch.chdir(tmp_path)
    return write_file(tmp_path / "params.yaml", FILE.encode())


@pytest.fixture
def params(file: Path) -> dict[str, Any]:
    return read_params(file)


LARS = PRESETS["mae-lars"]
SGD = {"optimiser": "sgd", "base_lr": 0.03, "epochs": 40, "warmup_epochs": 4}
SQUASHED = {"input_size": "336x448", "crop_mode": "squash", "crop_pct": 1.0}


class TestTraining:
    @pytest.mark.parametrize(
        ("head", "encoder", "dataset", "recipe"),
        [
            ("cls", "mae-b16", "imagenet", LARS),  # the preset of the data set replaces the recipe of probe
            ("cls", "mae-h14", "imagenet", {**LARS, "epochs": 50}),  # the encoder wins over the data set, …
            ("abmilp", "mae-h14", "imagenet", {**LARS, "epochs": 11, "base_lr": 0.5}),  # … and the head over both
            ("cls", None, None, SGD),
            ("cls", "mae-h14", "few", {**SGD, "epochs": 50, "order": "own"}),  # images per batch are of its extraction
        ],
    )
    def test_layers(self, head: str, encoder: str | None, dataset: str | None, recipe: dict, params: dict[str, Any]) -> None:
        plans, _ = plans_and_run([head], params, {}, {}, common_layers(params, encoder, dataset))
        assert plans[head].recipe == Recipe(**recipe)

    def test_parameters_of_the_run_and_a_start_that_wins_over_a_preset_come_from_layers_too(
        self, params: dict[str, Any]
    ) -> None:
        _, of_run = plans_and_run(["cls"], params, {}, {}, common_layers(params, "simmim-b16", "few"))
        assert of_run == {"percent": 1, "block": 8}
        for encoder, init in (("simmim-b16", "small"), ("mae-b16", "uniform")):
            plans, _ = plans_and_run(["abmilp"], params, {}, {}, common_layers(params, encoder, "imagenet"))
            assert plans["abmilp"].head.init == init

    def test_a_metric_that_the_images_cannot_have(self, params: dict[str, Any]) -> None:
        check_metric(params, "cub", is_multilabel=True)
        with pytest.raises(BeyondClsError, match=r"datasets.imagenet.metric is top1, but its images have several labels"):
            check_metric(params, "imagenet", is_multilabel=True)
        with pytest.raises(BeyondClsError, match=r"datasets\.cub\.metric is 'top2', expected top1 or "):
            datasets_of({"datasets": {"cub": {"metric": "top2"}}})


class TestExtraction:
    @pytest.mark.parametrize(
        ("encoder", "dataset", "split", "loading", "options"),
        [
            ("mae-b16", "cub", "train", {}, {"views": 4}),
            ("mae-b16", "cub", "test", {}, {}),
            ("mae-h14", "imagenet", "test", {}, {"batch_size": 32, "amp": "bf16"}),
            ("simmim-b16", "cub", "train", {}, {"views": 2, "drop_path": 0.1, "blocks": [8]}),
            # Of dense tasks whole images and all truths, unless the data set says otherwise.
            ("dino-s16", "cub", "train", {"input_size": 384, "crop_pct": 0.9}, {"views": 4}),
            ("dino-s16", "camvid", "train", SQUASHED, {"truths": "all", "views": 2}),
            ("dino-s16", "shop", "train", {"input_size": 384, "crop_mode": "border", "crop_pct": 1.0}, {"truths": "instances"}),
        ],
    )
    def test_layers(
        self, encoder: str, dataset: str, split: str, loading: dict[str, Any], options: dict[str, Any], file: Path
    ) -> None:
        colours = {"mean": [0.5, 0.5, 0.5]} if encoder == "dino-s16" else {}
        common = {"dtype": "float16", "batch_size": 128, "views": 1, "truths": "none"}
        assert from_params(file, encoder, dataset, {"split": split}) == ({**colours, **loading}, {**common, **options})

    def test_crops_and_stochastic_depth_are_of_training_images_and_windows_of_all(self, params: dict[str, Any]) -> None:
        """As many as the data set says, whatever crops an encoder has elsewhere."""
        params["extract"] |= {"drop_path": 0.3}
        assert resolve_extraction(params, "mae-b16", "cub", "train")["drop_path"].value == 0.3
        assert "drop_path" not in resolve_extraction(params, "mae-b16", "cub", "test")
        assert resolve_extraction(params, "dino-s16", "camvid", "test")["views"].value == 1
        params["dense"]["datasets"]["camvid"] |= {"crop_mode": "slide"}
        params["encoders"]["dino-s16"] |= {"views": 5}
        for split in ("train", "test"):
            given = resolve_extraction(params, "dino-s16", "camvid", split)
            assert (given["views"].value, given["crop_mode"].value, given["crop_pct"].value) == (2, "slide", 1)

    def test_images_are_where_and_splits_called_as_the_data_set_says(self, params: dict[str, Any]) -> None:
        """And a list is of the training images."""
        assert images_of(params, "camvid", "test") == {"data": "streets/camvid", "form": "camvid", "split": "val"}
        assert images_of(params, "cub", "train") == {"data": "images/cub", "form": "cub", "split": "train"}
        for entry, place in ((params["datasets"]["cub"], "images/cub"), (params["dense"]["datasets"]["shop"], "streets/shop")):
            entry["train_ids"] = "few.txt"
            assert images_of(params, place.partition("/")[2], "train")["ids"] == f"{place}/few.txt"
            assert "ids" not in images_of(params, place.partition("/")[2], "test")
        assert datasets_of({"datasets": ["a", "b"]}) == datasets_of({"datasets": {"a": None, "b": {}}})


class TestTasks:
    def test_the_command_line_wins_and_its_preset_replaces_the_recipe(self, file: Path) -> None:
        given = options_of_task(file, "detect", OPTIONS["detect"], "shop", None, {"epochs": 2})
        assert given == {"preset": "small", "epochs": 2, "anchors": (16, 32, 64, 128), "seeds": (0, 1)}
        by_presets = {**detect.OF_A_RECIPE, **detect.OF_A_DETECTOR}
        given = options_of_task(file, "detect", OPTIONS["detect"], "shop", None, {"preset": "v1"}, by_presets)
        assert given == {"preset": "v1", "seeds": (0, 1)}
        with pytest.raises(BeyondClsError, match="--encoder mae is in a parameter file; name it with --params"):
            options_of_task(None, "segment", OPTIONS["segment"], None, "mae", {})

    def test_segmentation_is_as_its_options_say(self) -> None:
        recipe = Recipe(20, 16, optimiser="adamw", base_lr=0.032, weight_decay=0.01, warmup_epochs=2)
        plan = HeadPlan(LINEAR.head, recipe, (0, 1, 2), (0.032, 0.128, 0.512), (0.01,))
        assert segment.settings({}, 100) == Protocols(linear=plan, loss_size=100)
        given = {"protocol": ["knn"], "ks": (5,), "metric": ["cosine"], "standardise": False, "epochs": 1, "seeds": (4,)}
        protocols = segment.settings({**given, "base_lrs": (0.5,), "weight_decays": (0.1, 0.2), "loss_size": 9}, 100)
        assert (protocols.names, protocols.loss_size, protocols.logistic.cs) == (("knn",), 9, CS)
        assert (protocols.knn.grid, protocols.knn.standardise) == ([("cosine", 5)], False)
        assert (protocols.linear.seeds, protocols.linear.settings) == ((4,), [(0.5, 0.1), (0.5, 0.2)])
        assert (protocols.linear.recipe.warmup_epochs, protocols.linear.recipe.base_lr) == (0, 0.5)
        assert (protocols.logistic.max_passes, segment.settings({"max_passes": 900}, 100).logistic.max_passes) == (500, 900)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("dense.datasets", ["shop"], r"dense.datasets .* is \['shop'\], .*; write \{shop: \{\}\}"),
        ("dense.datasets.cub", {}, "'cub' is in datasets and in dense.datasets; give one of the two another"),
        ("dense.datasets.shop.mean", [0, 0, 0], "unknown parameter in dense.datasets.shop 'mean'"),
        ("dense.segments", {}, "unknown parameter in dense 'segments'; did you mean 'segment'"),
        ("dense.data", None, "dense.data in the parameter file is None, expected the folder that holds"),
        ("dense.segment.camvit", {}, "unknown data set in dense.segment 'camvit'; did you mean 'camvid'"),
        ("dense.segment.camvid.protocols", "knn", "dense.segment.camvid 'protocols'; did you mean"),
        ("dense.segment.camvid.ks", [1, "x"], "dense.segment.camvid.ks is '1,x', expected integers with commas"),
        ("dense.detect.shop.lr", "high", "dense.detect.shop.lr is 'high', expected a number"),
        ("dense.detect", ["camvid"], r"dense.detect in the parameter file is \['camvid'\]"),
        ("studies.deep.encoder", None, "has encoder None, .*encoder: mae-b16"),
        ("studies.deep.dataset", None, "has dataset None"),
    ],
)
def test_mistakes(place: str, value: Any, says: str, params: dict[str, Any]) -> None:
    *sections, name = place.split(".")
    reduce(dict.__getitem__, sections, params)[name] = value
    with pytest.raises(BeyondClsError, match=says):
        list(all_recipes(params))


def test_unknown_names(params: dict[str, Any]) -> None:
    for encoder, dataset, says in (("mae-b17", None, "'mae-b16'"), (None, "cab", "'cub'")):
        with pytest.raises(BeyondClsError, match=rf"did you mean {says}\?"):
            common_layers(params, encoder, dataset)
    with pytest.raises(BeyondClsError, match=r"unknown data set 'camvit'; did you mean 'camvid'\?.* dense.datasets"):
        images_of(params, "camvit", "train")
    with pytest.raises(BeyondClsError, match=r"unknown data set 'camvid'.* Add it to dense.detect in the parameter file"):
        of_task(params, "detect", OPTIONS["detect"], "camvid")


class TestFiles:
    def test_one_for_each_stage_and_what_else_is_there_stays(self, params: dict[str, Any], tmp_path: Path) -> None:
        """Results of the form in which stages write them, too."""
        result = write_file(tmp_path / "recipes/probes/cub/mae-b16/cls/metrics.json", b'{\n "top1": 50.0\n}\n')
        n = write_recipes(params, tmp_path / "recipes")
        files = {str(file.relative_to(tmp_path / "recipes")) for file in (tmp_path / "recipes").rglob("*.json")}
        of_datasets, of_encoders = 3 + 2, 4 * (1 + (3 + 2) * 2 + 3 * 3 + 3 + 2)
        assert len(files) - 1 == n == of_datasets + of_encoders + 1
        assert {"probes/cub/mae-h14/abmilp.json", "extract/simmim-b16-few-test.json", "segment/camvid/mae-b16.json"} <= files
        assert json.loads((tmp_path / "recipes/studies/deep.json").read_text())["abmilp"]["epochs"] == 5
        write_recipes({**params, "datasets": ["few"], "studies": {}}, tmp_path / "recipes")
        assert result.read_bytes() == b'{\n "top1": 50.0\n}\n'

    @pytest.mark.parametrize("linked", ["encoders", "probes/cub"])
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
        before, encoders = dict(all_recipes(params)), params["encoders"]
        assert set(TASKS) <= set(FOLDERS)
        for name in ("imagenet", "cub", "few"):
            params["datasets"][name]["seeds"] = params["probe"]["seeds"]
        assert dict(all_recipes(params)) == before
        params["datasets"]["cub"]["preset"] = "mae-lars"
        params["dense"]["datasets"]["shop"]["crop_pct"] = 0.5
        after = dict(all_recipes(params))
        expected = {f"probes/cub/{encoder}/{head}" for encoder in encoders for head in ("cls", "average", "abmilp")}
        expected |= {f"training/cub/{encoder}" for encoder in encoders}
        expected |= {f"extract/{encoder}-shop-{split}" for encoder in encoders for split in ("train", "test")}
        assert {name for name in before if before[name] != after[name]} == expected


@pytest.mark.usefixtures("file")
class TestCommand:
    @pytest.mark.parametrize(
        ("options", "rows"),
        [
            ("--encoder mae-h14 --dataset imagenet --head cls", ["epochs 50 encoders.mae-h14"]),
            ("--head cls", ["epochs 40 probe", "order shared default"]),
            ("--study deep", ["epochs 5 studies.deep", "depth 2 heads.abmilp"]),
            ("--encoder simmim-b16 --dataset cub --split train", ["blocks 8 encoders.simmim-b16"]),
            ("--encoder dino-s16 --dataset shop --split train", ["crop_mode border dense.datasets.shop"]),
            ("--task segment --dataset camvid", ["ks 1, 5 dense.segment.camvid", "batch_size 16 default"]),
            ("--task detect --dataset shop --encoder simmim-b16", ["block 8 encoders.simmim-b16", "lr 0.001 preset small"]),
            ("", ["datasets imagenet, cub, few", "studies deep", "dense camvid, shop", "segment camvid", "detect shop"]),
            ("--task segmant --dataset camvid", "'segment'?"),
            ("--task segment", "give --dataset, one of dense.segment"),
            ("--head clss", "'clss'"),
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
        assert command("params", "--out", "recipes", "--results", "probes,divergence,mine,linked")[1] == "recipes: 106 files\n"
        assert yaml.safe_load(Path("recipes/probes/cub/mae-b16/cls.json").read_text())["preset"] == "small-sgd"
        assert {path.name for path in Path("probes").iterdir()} == {"cub", "README.md"}
        assert "divergence/DATASET" in Path("divergence/README.md").read_text()
        assert Path("mine/README.md").read_text() == "mine\n"
        assert not Path("linked/nowhere").exists()
