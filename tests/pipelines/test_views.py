from functools import partial
from pathlib import Path

import pytest

from extract.datasets import ImageSet, open_images
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import probe
from quickstart.views import HEADS, measure
from tests.extract.tiny import tiny_encoder

N = 24


def images(split: str) -> ImageSet:
    image_set = open_images("quickstart/data/cifar10", split=split)
    return ImageSet(image_set.source, image_set.samples[:N], image_set.classes)


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quickstart.views.probe", partial(probe, converged=False))
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
    assert kept["cls-fresh"]["command"].startswith("python -m quickstart.views")
    assert len(kept["abmilp-fresh"]["top1"]["values"]) == 2
