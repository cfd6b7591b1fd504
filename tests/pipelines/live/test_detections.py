"""A detector on its live encoder finds what it finds in the cached tokens of the same images."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score

from extract.datasets import ImageSet
from extract.datasets.sample import Sample
from extract.encoders import Encoder, load_encoder
from extract.run import extract
from pipelines.live.detections import online_detector
from probe.detection.detected import detections
from probe.detection.detector import Detector, load_detector, load_detector_with, save_detector
from probe.detection.recipe import DetectorOptions
from probe.sources import Source
from store import BeyondClsError, FeatureStore
from store.truths.rle import decode
from tests.extract.tiny import TINY, tiny_encoder
from tests.probe.detection.tiny import CLASSES, OPTIONS
from tests.truths import with_truths

SIZES = [(40, 60), (56, 36), (48, 48), (30, 70)]


@pytest.fixture(scope="module", params=[("squash", (64, 64)), ("border", (48, 80))], ids=["squash", "border"])
def world(request, tmp_path_factory) -> tuple[Encoder, FeatureStore, list[Image.Image], str]:
    """An encoder, also of images that are no square, its features, their pictures, and a detector with random weights."""
    mode, size = request.param
    folder, random = tmp_path_factory.mktemp(mode), np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (*of_one, 3), np.uint8)) for of_one in SIZES]
    samples = []
    for i, picture in enumerate(pictures):
        file = folder / f"{i}.png"
        picture.save(file)
        samples.append(Sample(str(i), None, file, 0, file.stat().st_size))
    arguments: dict[str, Any] = {**TINY, "img_size": list(size)}
    model = {"model": "vit_tiny_patch16_224", "arguments": arguments, "crop_mode": mode, "crop_pct": 1.0}
    encoder = load_encoder("tiny", random_seed=0, **model)
    plain = extract(encoder, ImageSet(str(folder), samples), folder / "plain", statistics=(), dtype="float32")
    store = with_truths(plain, folder / "set", sizes=SIZES)
    source = Source(store)
    torch.manual_seed(0)
    detector = Detector(source.dim, store.grid, len(CLASSES), DetectorOptions(**OPTIONS))
    save_detector(folder / "seed0", detector, {**source.description, "classes": list(CLASSES)})
    return encoder, store, pictures, str(folder / "seed0")


def test_finds_what_the_cache_finds(world):
    encoder, store, pictures, path = world
    model, cached = online_detector(encoder, path), load_detector(path)
    model.detector.roi_heads.score_thresh = cached.roi_heads.score_thresh = 0.15
    offline = list(detections(cached, store, np.arange(len(store))))
    live = model.detect(pictures)
    assert all(len(one.labels) > 4 for one in offline)
    for ours, theirs in zip(live, offline, strict=True):
        assert ours.size == theirs.size
        assert ours.labels.tolist() == theirs.labels.tolist()
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=5e-3)
        np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=0.5)
        for mine, other in zip(ours.counts, theirs.counts, strict=True):
            one, two = decode(mine, ours.size).astype(bool), decode(other, ours.size).astype(bool)
            assert jaccard_score(two.ravel(), one.ravel(), zero_division=1) > 0.9 or not two.any()


def test_another_encoder_is_refused(world):
    encoder, _, _, path = world
    with pytest.raises(BeyondClsError, match=r"has weights .*; load 'tiny' as it was extracted"):
        online_detector(tiny_encoder(1, img_size=encoder.config["input_size"][1:]), path)
    detector, about = load_detector_with(path)
    for changed, message in (({"block": 9}, "there is no block 9"), ({"classes": ["a"]}, "1 names of classes, expected 2")):
        with pytest.raises(BeyondClsError, match=message):
            online_detector(encoder, detector, description=about | changed)
    assert online_detector(encoder, detector, description=about | {"block": 0}).block == 0
    model = online_detector(encoder, path)
    assert (model.classes, model.train().training) == (CLASSES, False)
    for refused, message in (
        (lambda: online_detector(tiny_encoder(), detector), "4 x 4 patches, 32 wide; .* load the encoder"),
        (lambda: online_detector(encoder, detector).detect([]), "no pictures"),
        (lambda: online_detector(encoder, detector, mean=(0, 0, 0)), "give mean to load_encoder"),
        (lambda: online_detector(encoder, path, description={}), "has its own description"),
    ):
        with pytest.raises(BeyondClsError, match=message):
            refused()
