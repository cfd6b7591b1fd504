from pathlib import Path

import numpy as np
import torch

from extract.datasets import ImageSet, open_images
from extract.run import extract
from pipelines.quickstart.views import HEADS, FreshCrops, measure, train_on_fresh
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import probe
from tests.extract.tiny import tiny_encoder

N = 24


def images(split: str) -> ImageSet:
    image_set = open_images("quickstart/data/cifar10", split=split)
    return ImageSet(image_set.source, image_set.samples[:N], image_set.classes)


def test_each_epoch_shows_another_crop_of_every_image(tmp_path: Path):
    encoder, training = tiny_encoder(), images("train")
    store = extract(encoder, training, tmp_path / "f", statistics=(), maps=False, views=3, dtype="float32")
    crops = FreshCrops(encoder, training, np.asarray(store.labels), 10, 1)
    orders = []
    for view in (1, 2):
        batches = list(crops.epoch(seed=view))
        assert [len(batch["label"]) for batch in batches] == [10, 10, 4]
        rows = torch.cat([batch["row"] for batch in batches]).numpy()
        orders.append(rows.tolist())
        assert sorted(rows) == list(range(N))
        assert np.array_equal(torch.cat([batch["label"] for batch in batches]), store.labels[rows])
        for kind in ("patch", "cls"):
            shown, stored = torch.cat([batch[kind] for batch in batches]), store.array(f"{kind}/block1/view{view}").all()
            np.testing.assert_allclose(shown, stored[rows], atol=1e-5)
    assert orders[0] != orders[1]


def test_fresh_crops_train_as_stored_ones_do(tmp_path: Path):
    """In steps of all images, whose order does not count, one epoch shows the crop that is stored as view 1."""
    encoder, sets = tiny_encoder(), {split: images(split) for split in ("train", "test")}
    stores = [
        extract(encoder, sets[split], tmp_path / split, statistics=(), maps=False, views=views, dtype="float32")
        for split, views in (("train", 2), ("test", 1))
    ]
    recipe = Recipe(epochs=1, batch_size=N, base_lr=30.0, warmup_epochs=0)
    plans = {name: HeadPlan(HeadSpec(name), recipe, seeds=(0, 1)) for name in HEADS}
    stored = probe(*stores, tmp_path / "probes", plans)
    fresh = train_on_fresh(FreshCrops(encoder, sets["train"], np.asarray(stores[0].labels), N, 1), stores[1], plans)
    for name, of_seeds in fresh.items():
        assert [measures["top1"] for measures in of_seeds] == stored[name]["top1"]["values"]
    np.testing.assert_allclose(
        [measures["entropy"] for measures in fresh["abmilp"]], stored["abmilp"]["entropy"]["values"], rtol=1e-5
    )


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path: Path):
    encoder, sets = tiny_encoder(), {split: images(split) for split in ("train", "test")}
    plans = {name: HeadPlan(HeadSpec(name), Recipe(epochs=2, batch_size=N, warmup_epochs=0), seeds=(0, 1)) for name in HEADS}
    written = []
    for _ in range(2):
        measure(encoder, sets, tmp_path / "features", tmp_path / "out", plans, (0, 1))
        files = {file.parent.name: file for file in (tmp_path / "out").glob("*/metrics.json")}
        assert sorted(files) == sorted(f"{head}-{crops}" for head in HEADS for crops in (0, 1, "fresh"))
        written.append({name: file.stat().st_mtime_ns for name, file in files.items()})
    assert written[0] == written[1]
    kept = {name: read_result(file) for name, file in files.items()}
    assert [kept[f"cls-{crops}"]["augmentation"]["n_crops"] for crops in (0, 1, "fresh")] == [0, 1, "fresh"]
    assert kept["cls-fresh"]["command"].startswith("python -m pipelines.quickstart.views")
    assert len(kept["abmilp-fresh"]["top1"]["values"]) == 2
