"""`extract: {on: processes}` in the parameter file: one command, as `dvc repro` gives it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.parameters.layers import engine_of
from pipelines.parameters.params import from_yaml
from pipelines.parameters.recipes import all_recipes
from pipelines.sharing.publish import _units_by_model
from store import BeyondClsError
from tests import forked  # noqa: F401
from tests.folders import files
from tests.pipelines.engines.workers import write_images

TINY = "{img_size: 32, patch_size: 8, embed_dim: 32, depth: 2, num_heads: 2}"
ENCODER = f"{{model: vit_tiny_patch16_224, arguments: {TINY}, random_seed: 0}}"


def test_a_stage_runs_on_it(beyondcls: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images")
    Path("params.yaml").write_text(f"encoders: {{tiny: {ENCODER}}}\nextract: {{tasks: 2, shard_rows: 32, statistics: []}}\n")
    given = ("extract", "--params", "params.yaml", "--encoder", "tiny", "--data", "images", "--update", "--device", "cpu")
    beyondcls(*given, "--out", "features/a", "--receipt", "receipts/a.json")
    beyondcls(*given, "--out", "features/b", "--on", "here")
    assert files(tmp_path / "features/a") == files(tmp_path / "features/b")
    (units,) = json.loads(Path("receipts/a.check.json").read_text())["units"].values()
    assert units == "0-4"
    assert "not computed again" in beyondcls(*given, "--out", "features/a"), "no worker is started"


def test_units_by_the_model_of_their_device() -> None:
    assert _units_by_model({unit: {"device": device} for unit, device in enumerate("baaab")} | {7: {"device": "a"}}) == {
        "a": "1-3,7",
        "b": "0,4",
    }


def test_where_it_runs_is_nothing_that_is_asked_of_a_set_or_a_head() -> None:
    data = "datasets: [d]\ndata: x\n"
    recipes = dict(
        all_recipes(from_yaml(f"{data}encoders: {{a: {{on: ray, tries: 2}}}}\nextract: {{on: slurm, tasks: 3, dtype: int8}}"))
    )
    assert recipes["encoders/a"] == {"dtype": "int8"}
    assert recipes["extract/a-d-train"].keys() == {"dtype", "data", "split"}
    text = f"{data}encoders: {{a: {{}}}}\nheads: {{abmilp: {{}}}}\nprobe: {{epochs: 3"
    engine = "on: slurm, tasks: 3, gpus: all, tries: 2, address: auto, sbatch: -p gpu, setup: [module load cuda]"
    params = from_yaml(f"{text}, {engine}, log: [csv, wandb]}}")
    assert dict(all_recipes(params)) == dict(all_recipes(from_yaml(f"{text}}}")))
    assert engine_of(params) == from_yaml(f"{{{engine}}}")


@pytest.mark.parametrize("values", [{"gpus": "some"}, {"setup": "module load cuda"}, {"setup": [5]}, {"on": 3}])
def test_values_that_cannot_be(values: dict[str, object], beyondcls: Callable[..., str], tmp_path: Path) -> None:
    (name,) = values
    with pytest.raises(BeyondClsError, match=rf"probe\.{name} is .*, expected"):
        engine_of({"probe": values})
    (tmp_path / "params.yaml").write_text(f"encoders: {{tiny: {ENCODER}}}\nextract: {json.dumps(values)}\n")
    assert name in beyondcls("params", "--params", tmp_path / "params.yaml", "--encoder", "tiny", fails=True)
