"""`beyondcls attention`: what is averaged, and in which order."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from extract.attention import facts_of
from extract.datasets import open_images
from extract.encoders import Encoder
from extract.run import extract
from pipelines.attention import main
from store import FeatureStore, StoreError
from store.format.pretraining import JOINT, Pretraining
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import sharpen, tiny_encoder
from tests.features import write_features

N_IMAGES, N_BLOCKS, N_HEADS = 9, 2, 2


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureStore, Path]:
    """A feature set whose sixth image is damaged, and its summary."""
    folder = tmp_path_factory.mktemp("attention")
    content = samples(N_IMAGES)
    content[5]["png"] = b"no picture"
    write_tar(folder / "images" / "0.tar", content)
    model = tiny_encoder().model
    sharpen(model, 8)
    images = open_images(str(folder / "images"))
    encoder = Encoder("tiny", model, {}, pretraining=Pretraining(JOINT))
    store = extract(encoder, images, folder / "features", on_error="record")
    assert store is not None
    main(folder / "features", folder / "out")
    return store, folder / "out"


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as source:
        return list(csv.DictReader(source))


def entropy(p: np.ndarray) -> np.ndarray:
    p = p / p.sum(-1, keepdims=True)
    return -(p * np.log(p)).sum(-1)


def test_mean_over_heads_and_then_over_images(written: tuple[FeatureStore, Path]) -> None:
    store, out = written
    rows = {(row["statistic"], int(row["block"])): row for row in table(out / "statistics.csv")}
    assert len(rows) == len(store.spec.statistics) * N_BLOCKS
    good = [row for row in range(N_IMAGES) if row != 5]  # an image that was not read counts nowhere
    for name in store.spec.statistics:
        values = store.array(f"statistics/{name}/view0").rows(np.array(good)).astype(np.float64)
        for block in range(N_BLOCKS):
            of_images = [values[i, block].mean() for i in range(len(good))]  # of its heads, or of the block itself
            row = rows[name, block]
            assert float(row["mean"]) == pytest.approx(sum(of_images) / len(good), rel=1e-9)
            assert float(row["std"]) == pytest.approx(np.std(of_images), rel=1e-9)
            assert float(row["median"]) == pytest.approx(np.median(of_images), rel=1e-9)
            quartiles = [float(row[f"{which}_quartile"]) for which in ("lower", "upper")]
            assert quartiles == pytest.approx(np.percentile(of_images, [25, 75]), rel=1e-9)


def test_entropy_is_of_each_head_and_not_of_their_average(written: tuple[FeatureStore, Path]) -> None:
    store, out = written
    good = np.array([row for row in range(N_IMAGES) if row != 5])
    maps = store.array("attention/cls/block1/view0").rows(good).astype(np.float64)  # [N, H, T], of the last block
    (row,) = (r for r in table(out / "statistics.csv") if (r["statistic"], r["block"]) == ("cls_patch_entropy", "1"))
    of_each, of_average = entropy(maps).mean(), entropy(maps.mean(1)).mean()
    assert float(row["mean"]) == pytest.approx(of_each, abs=2e-3)  # maps are float16
    assert of_average - of_each > 0.02  # entropy is concave: heads that look elsewhere make a map that looks everywhere
    assert abs(float(row["mean"]) - of_average) > 0.02


def test_heads_are_averaged_over_images_alone(written: tuple[FeatureStore, Path]) -> None:
    store, out = written
    rows = table(out / "heads.csv")
    per_head = [name for name in store.spec.statistics if store.array(f"statistics/{name}/view0").shape[2:] == (N_HEADS,)]
    assert len(rows) == len(per_head) * N_BLOCKS * N_HEADS
    by_block: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        by_block.setdefault((row["statistic"], row["block"]), []).append(float(row["mean"]))
    for row in table(out / "statistics.csv"):
        if row["statistic"] in per_head:
            heads = by_block[row["statistic"], row["block"]]
            assert np.mean(heads) == pytest.approx(float(row["mean"]), rel=1e-9)
            assert heads[0] != heads[1]
    values = store.array("statistics/cls_self_adjusted/view0").rows(np.array([r for r in range(N_IMAGES) if r != 5]))
    (row,) = (r for r in rows if (r["statistic"], r["block"], r["head"]) == ("cls_self_adjusted", "1", "1"))
    assert float(row["median"]) == pytest.approx(np.median(values[:, 1, 1].astype(np.float64)), rel=1e-9)


def test_maps_and_summary(written: tuple[FeatureStore, Path]) -> None:
    store, out = written
    maps = np.load(out / "maps/cls_map.npy", allow_pickle=False).astype(np.float64)
    assert maps.shape == (N_IMAGES - 1, 16)
    np.testing.assert_allclose(maps.sum(1), 1, atol=2e-3)
    crops = np.load(out / "maps/crops.npy", allow_pickle=False)  # of the images that were read
    np.testing.assert_array_equal(crops, store.array("images/crop/view0").all()[store.valid])
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["key"], summary["n_images"], summary["n_tokens"]) == (store.spec.key, N_IMAGES - 1, 16)
    assert summary["block"] == 1
    unbounded = {name for name in store.spec.statistics if not facts_of(name).is_bounded}
    assert set(summary["unbounded"]) == unbounded >= {"cls_self_adjusted"}
    assert (summary["family"], summary["random_seed"]) == (JOINT, None)
    assert set(summary["statistics"]) == set(store.spec.statistics)
    assert summary["statistics"]["cls_patch_entropy"] == {
        "title": "Entropy of the attention of [cls] to the patches",
        "unit": "entropy, nats",
    }


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
