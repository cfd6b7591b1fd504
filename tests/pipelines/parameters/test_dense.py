"""Section `dense` of params.yaml: data sets of dense tasks, which layer wins, and what `segment` and `detect` are asked for."""

from pathlib import Path
from typing import Any

import pytest

from pipelines import detect, segment
from pipelines.parameters.datasets import TASKS, dense_datasets, images_of
from pipelines.parameters.dense import of_task, options_of_task
from pipelines.parameters.extraction import from_params, resolve_extraction
from pipelines.parameters.params import from_yaml
from pipelines.parameters.recipes import FOLDERS, OPTIONS, all_recipes, of_extraction, values_of
from probe.grid import HeadPlan
from probe.recipe import Recipe
from probe.segmentation.logistic import CS
from probe.segmentation.run import LINEAR, Protocols
from store import BeyondClsError

FILE = """
data: images
datasets: { cub: { views: 4 } }
encoders:
  mae-b16: { crop_pct: 0.9, mean: [0.5, 0.5, 0.5], input_size: 384 }
  simmim-b16: { block: 8 }
extract: { dtype: float16, truths: none, views: 1 }
dense:
  data: streets
  datasets:
    camvid: { test: val, form: camvid, input_size: 336x448, views: 2 }
    shop: { truths: instances, crop_mode: border }
  segment: { camvid: { protocol: [knn, linear], at: [original, 512], ks: [1, 5], epochs: 3, save_maps: 2, cs: null } }
  detect: { shop: { preset: small, epochs: 9, anchors: [16, 32, 64, 128], seeds: [0, 1] } }
"""


@pytest.fixture
def params() -> dict[str, Any]:
    return from_yaml(FILE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text(FILE)
    return tmp_path / "params.yaml"


class TestDataSets:
    def test_images_are_in_a_folder_of_their_own(self, params: dict[str, Any]) -> None:
        """And a list is of the training images."""
        assert images_of(params, "camvid", "test") == {"data": "streets/camvid", "form": "camvid", "split": "val"}
        assert images_of(params, "cub", "train") == {"data": "images/cub", "split": "train"}
        for entry, place in ((params["datasets"]["cub"], "images/cub"), (params["dense"]["datasets"]["shop"], "streets/shop")):
            entry["train_ids"] = "few.txt"
            assert images_of(params, place.partition("/")[2], "train")["ids"] == f"{place}/few.txt"
            assert "ids" not in images_of(params, place.partition("/")[2], "test")

    @pytest.mark.parametrize(
        ("dataset", "loading", "options"),
        [
            ("camvid", {"input_size": "336x448", "crop_mode": "squash", "crop_pct": 1.0}, {"truths": "all", "views": 2}),
            ("shop", {"input_size": 384, "crop_mode": "border", "crop_pct": 1.0}, {"truths": "instances", "views": 1}),
            ("cub", {"input_size": 384, "crop_pct": 0.9}, {"truths": "none", "views": 4}),
        ],
    )
    def test_whole_images_and_all_truths_unless_they_say_otherwise(
        self, dataset: str, loading: dict[str, Any], options: dict[str, Any], file: Path
    ) -> None:
        given = from_params(file, "mae-b16", dataset, {"split": "train"})
        assert given == ({"mean": [0.5, 0.5, 0.5], **loading}, {"dtype": "float16", **options})

    def test_crops_are_of_training_images_and_windows_of_all(self, params: dict[str, Any]) -> None:
        """As many as the data set says, whatever crops an encoder has elsewhere."""
        assert resolve_extraction(params, "mae-b16", "camvid", "test")["views"].value == 1
        params["dense"]["datasets"]["camvid"] |= {"crop_mode": "slide"}
        params["encoders"]["mae-b16"] |= {"views": 5}
        for split in ("train", "test"):
            given = resolve_extraction(params, "mae-b16", "camvid", split)
            assert (given["views"].value, given["crop_mode"].value, given["crop_pct"].value) == (2, "slide", 1)

    def test_where_a_value_comes_from(self, params: dict[str, Any]) -> None:
        given = of_extraction(params, "mae-b16", "camvid", "train")
        assert {given[name].where for name in ("data", "crop_mode", "input_size", "truths")} == {"dense.datasets.camvid"}
        assert given["mean"].where == "encoders.mae-b16"

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"datasets": ["shop"]}, r"dense.datasets in the parameter file is \['shop'\], .*; write \{shop: \{\}\}"),
            ({"datasets": {"cub": {}}}, "data set 'cub' is in datasets and in dense.datasets; give one of the two another"),
            ({"datasets": {"shop": {"crop_mod": "squash"}}}, "dense.datasets.shop 'crop_mod'; did you mean"),
            ({"datasets": {"shop": {"mean": [0, 0, 0]}}}, "unknown parameter in dense.datasets.shop 'mean'"),
            ({"datasets": 3}, "dense.datasets in the parameter file is 3, expected names and values"),
            ({"segments": {}}, "unknown parameter in dense 'segments'; did you mean 'segment'?"),
        ],
    )
    def test_mistakes(self, changed: dict[str, Any], says: str, params: dict[str, Any]) -> None:
        with pytest.raises(BeyondClsError, match=says):
            dense_datasets({**params, "dense": {**params["dense"], **changed}})

    def test_images_that_are_nowhere(self, params: dict[str, Any]) -> None:
        with pytest.raises(BeyondClsError, match=r"unknown data set 'camvit'; did you mean 'camvid'\?.* dense.datasets"):
            images_of(params, "camvit", "train")
        del params["dense"]["data"]
        with pytest.raises(BeyondClsError, match=r"dense.data in the parameter file is None, expected the folder that holds"):
            images_of(params, "camvid", "train")


class TestTasks:
    def test_options_of_a_data_set_and_block_of_an_encoder(self, params: dict[str, Any]) -> None:
        given = of_task(params, "segment", OPTIONS["segment"], "camvid", "simmim-b16")
        names = {"protocol": ["knn", "linear"], "at": ["original", "512"]}
        assert values_of(given) == {**names, "ks": (1, 5), "epochs": 3, "save_maps": 2, "block": 8}
        assert (given["ks"].where, given["block"].where) == ("dense.segment.camvid", "encoders.simmim-b16")

    def test_the_command_line_wins_and_its_preset_replaces_the_recipe(self, file: Path) -> None:
        given = options_of_task(file, "detect", OPTIONS["detect"], "shop", None, {"epochs": 2})
        assert given == {"preset": "small", "epochs": 2, "anchors": (16, 32, 64, 128), "seeds": (0, 1)}
        by_presets = {**detect.OF_A_RECIPE, **detect.OF_A_DETECTOR}
        given = options_of_task(file, "detect", OPTIONS["detect"], "shop", None, {"preset": "v1"}, by_presets)
        assert given == {"preset": "v1", "seeds": (0, 1)}

    @pytest.mark.parametrize(
        ("task", "entry", "says"),
        [
            ("segment", {"camvit": {}}, "unknown data set in dense.segment 'camvit'; did you mean 'camvid'?"),
            ("segment", {"camvid": {"protocols": "knn"}}, "dense.segment.camvid 'protocols'; did you mean"),
            ("segment", {"camvid": {"protocol": "knn"}}, r"camvid.protocol is 'knn', expected a list of texts"),
            ("segment", {"camvid": {"ks": [1, "x"]}}, "dense.segment.camvid.ks is '1,x', expected integers with commas"),
            ("segment", {"camvid": {"epochs": 0}}, "dense.segment.camvid.epochs is 0, expected 1 or more"),
            ("detect", {"camvid": {"lr": "high"}}, "dense.detect.camvid.lr is 'high', expected a number"),
            ("detect", ["camvid"], r"dense.detect in the parameter file is \['camvid'\]"),
            ("detect", {"shop": {}}, r"unknown data set 'camvid'.* Add it to dense.detect in the parameter file"),
        ],
    )
    def test_mistakes(self, task: str, entry: Any, says: str, params: dict[str, Any]) -> None:
        params["dense"][task] = entry
        with pytest.raises(BeyondClsError, match=says.replace("?", r"\?")):
            of_task(params, task, OPTIONS[task], "camvid")

    def test_names_need_their_file(self) -> None:
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


class TestRecipes:
    def test_what_a_change_concerns(self, params: dict[str, Any]) -> None:
        before = dict(all_recipes(params))
        assert set(TASKS) <= set(FOLDERS)
        assert {"segment/camvid/mae-b16", "detect/shop/simmim-b16", "extract/mae-b16-shop-test"} <= before.keys()
        params["dense"]["segment"]["camvid"]["epochs"] = 4
        after = dict(all_recipes(params))
        changed = {name for name, content in after.items() if content != before[name]}
        assert changed == {"segment/camvid/mae-b16", "segment/camvid/simmim-b16"}
        params["dense"]["datasets"]["shop"]["crop_pct"] = 0.5
        changed = {name for name, content in all_recipes(params) if content != after[name]}
        assert changed == {f"extract/{encoder}-shop-{split}" for encoder in params["encoders"] for split in ("train", "test")}
        del params["dense"]
        without = dict(all_recipes(params))
        assert without == {name: content for name, content in after.items() if name in without}
        assert without
        assert not [name for name in without if name.startswith(tuple(f"{task}/" for task in TASKS))]

    @pytest.mark.parametrize(
        ("options", "rows"),
        [
            ("--task segment --dataset camvid", ["ks 1, 5 dense.segment.camvid", "batch_size 16 default"]),
            ("--task detect --dataset shop --encoder simmim-b16", ["block 8 encoders.simmim-b16", "lr 0.001 preset small"]),
            ("--task detect --dataset shop", ["epochs 9 dense.detect.shop", "optimiser adamw default"]),
            ("--encoder mae-b16 --dataset shop --split train", ["crop_mode border dense.datasets.shop"]),
            ("", ["dense camvid, shop", "segment camvid", "detect shop"]),
            ("--task segmant --dataset camvid", "'segment'?"),
            ("--task segment", "give --dataset, one of dense.segment"),
        ],
    )
    def test_are_shown(self, options: str, rows: list[str] | str, command: Any, file: Path) -> None:
        status, out, err = command("params", "--params", str(file), *options.split())
        assert status == int(isinstance(rows, str)), err
        if isinstance(rows, str):
            assert rows in err
        else:
            assert set(rows) <= {" ".join(line.split()) for line in out.splitlines()}
