"""`beyondcls attention`: what is averaged, and in which order."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from extract.attention import facts_of
from extract.datasets import open_images
from extract.encoders import Encoder
from extract.run import extract
from pipelines.attention import main
from store import FeatureStore, StoreError
from store.format.pretraining import JOINT, Pretraining
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder
from tests.features import write_features

GOOD = np.array([0, 1, 2, 3, 4, 6, 7, 8])  # an image that was not read counts nowhere


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureStore, Path]:
    """A feature set whose sixth image is damaged, and its summary."""
    folder = tmp_path_factory.mktemp("attention")
    content = samples(9)
    content[5]["png"] = b"no picture"
    images = open_images(str(write_tar(folder / "images" / "0.tar", content)))
    encoder = Encoder("tiny", tiny_encoder().model, {}, pretraining=Pretraining(JOINT))
    store = extract(encoder, images, folder / "features", on_error="record")
    assert store is not None
    main(folder / "features", folder / "out")
    return store, folder / "out"


def test_means_over_heads_and_then_over_images_and_of_heads_over_images_alone(written: tuple[FeatureStore, Path]) -> None:
    store, out = written
    table = pd.read_csv(out / "statistics.csv").set_index(["statistic", "block"])
    heads = pd.read_csv(out / "heads.csv").set_index(["statistic", "block", "head"])
    for name in store.spec.statistics:
        values = store.array(f"statistics/{name}/view0").rows(GOOD).astype(np.float64)
        of_images = pd.DataFrame(values.mean(2) if values.ndim == 3 else values)
        expected = {"mean": of_images.mean(), "std": of_images.std(ddof=0), "median": of_images.median()}
        expected |= {"lower_quartile": of_images.quantile(0.25), "upper_quartile": of_images.quantile(0.75)}
        for measure, by_block in expected.items():
            assert table.loc[name][measure].tolist() == pytest.approx(by_block.tolist(), rel=1e-9), (name, measure)
        if values.ndim == 3:
            assert heads.loc[name]["mean"].tolist() == pytest.approx(values.mean(0).ravel(), rel=1e-9)
            assert heads.loc[name]["median"].tolist() == pytest.approx(np.median(values, 0).ravel(), rel=1e-9)
    assert len(table) == 2 * len(store.spec.statistics)
    assert set(heads.index.get_level_values("statistic")) < set(store.spec.statistics), "some are of blocks"


def test_maps_and_summary(written: tuple[FeatureStore, Path]) -> None:
    store, out = written
    maps = np.load(out / "maps/cls_map.npy", allow_pickle=False).astype(np.float64)
    assert maps.shape == (len(GOOD), 16)
    np.testing.assert_allclose(maps.sum(1), 1, atol=2e-3)
    crops = np.load(out / "maps/crops.npy", allow_pickle=False)  # of the images that were read
    np.testing.assert_array_equal(crops, store.array("images/crop/view0").all()[store.valid])
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["key"], summary["n_images"], summary["n_tokens"]) == (store.spec.key, len(GOOD), 16)
    unbounded = {name for name in store.spec.statistics if not facts_of(name).is_bounded}
    assert set(summary["unbounded"]) == unbounded >= {"cls_self_adjusted"}
    assert (summary["block"], summary["family"], summary["random_seed"]) == (1, JOINT, None)
    assert set(summary["statistics"]) == set(store.spec.statistics)
    facts = facts_of("cls_patch_entropy")
    assert summary["statistics"]["cls_patch_entropy"] == {"title": facts.title, "unit": facts.unit}


def test_maps_of_a_block(tmp_path: Path) -> None:
    """By default of the deepest."""
    store = write_features(tmp_path / "set", blocks=(0, 1), crops=True)
    for given, block in ((0, 0), (None, 1)):
        main(tmp_path / "set", tmp_path / "out", given)
        maps = np.load(tmp_path / "out/maps/cls_map.npy", allow_pickle=False)
        rows = store.array(f"attention/cls/block{block}/view0").all().astype(np.float64).mean(1)
        np.testing.assert_allclose(maps, rows / rows.sum(-1, keepdims=True), rtol=2e-3)
        assert json.loads((tmp_path / "out/summary.json").read_text())["block"] == block
    with pytest.raises(StoreError, match="keeps the attention map 'cls' of block 1, not of block 0"):
        main(write_features(tmp_path / "one", blocks=(0, 1), map_blocks=(1,)).path, tmp_path / "out", 0)
