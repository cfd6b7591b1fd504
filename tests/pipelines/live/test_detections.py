"""A detector on its live encoder finds what it finds in the cached tokens of the same images."""

from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import jaccard_score

from extract.datasets import ImageSet
from extract.datasets.sample import Sample
from extract.encoders import Encoder, load_encoder
from extract.run import extract
from pipelines.live.detections import online_detector
from probe.detection.detected import detections
from probe.detection.detector import load_detector, load_detector_with
from probe.detection.recipe import DetectionRecipe, DetectorOptions
from probe.detection.run import Detection, detect
from probe.detection.sets import images_with_objects
from store import BeyondClsError, FeatureStore
from store.truths.rle import decode
from tests.extract.tiny import TINY, tiny_encoder
from tests.probe.detection.tiny import CLASSES, OPTIONS
from tests.truths import instances_of, with_truths

SIZES = [(40, 60), (56, 36), (48, 48), (30, 70)]
BOXES = [(8, 6, 40, 30), (4, 10, 30, 50), (10, 10, 40, 40), (20, 4, 60, 26)]


def drawn(size: tuple[int, int], box: tuple[int, int, int, int]) -> tuple[Image.Image, np.ndarray]:
    """A picture with a bright rectangle, and its mask."""
    mask = np.zeros(size, bool)
    mask[box[1] : box[3], box[0] : box[2]] = True
    noise = np.random.default_rng(0).integers(0, 60, (*size, 3))
    return Image.fromarray(np.where(mask[..., None], 230, noise).astype(np.uint8)), mask


@pytest.fixture(scope="module", params=[("squash", (64, 64)), ("border", (48, 80))], ids=["squash", "border"])
def world(request, tmp_path_factory) -> tuple[Encoder, FeatureStore, list[Image.Image], str]:
    """An encoder, also of images that are no square, its features, their pictures, and a detector trained on them."""
    mode, size = request.param
    folder = tmp_path_factory.mktemp(mode)
    pictures, masks = zip(*map(drawn, SIZES, BOXES), strict=True)
    samples = []
    for i, picture in enumerate(pictures):
        file = folder / f"{i}.png"
        picture.save(file)
        samples.append(Sample(str(i), None, file, 0, file.stat().st_size))
    arguments: dict[str, Any] = {**TINY, "img_size": list(size)}
    model = {"model": "vit_tiny_patch16_224", "arguments": arguments, "crop_mode": mode, "crop_pct": 1.0}
    encoder = load_encoder("tiny", random_seed=0, **model)
    plain = extract(encoder, ImageSet(str(folder), samples), folder / "plain", statistics=())
    truths = [instances_of(mask[None], [i % 2]) for i, mask in enumerate(masks)]
    store = with_truths(plain, folder / "set", instances=truths, instance_classes=CLASSES, sizes=SIZES)
    images = images_with_objects(store)
    recipe = DetectionRecipe(epochs=45, batch_size=4, lr=1e-2, warmup_steps=5, schedule="cosine", clip=1.0)
    detect(Detection(images, images, recipe, DetectorOptions(**OPTIONS | {"width": 16, "box_features": 64})), folder / "out")
    return encoder, store, list(pictures), str(folder / "out/trained/seed0")


def test_finds_what_the_cache_finds(world):
    encoder, store, pictures, path = world
    model, cached = online_detector(encoder, path), load_detector(path)
    model.detector.roi_heads.score_thresh = cached.roi_heads.score_thresh = 0.15
    offline = list(detections(cached, store, np.arange(len(store))))
    live = model.detect(pictures)
    assert sum(len(one.labels) for one in offline) > 4
    for ours, theirs in zip(live, offline, strict=True):
        assert ours.size == theirs.size
        assert ours.labels.tolist() == theirs.labels.tolist()
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=5e-3)  # tokens are stored as float16
        np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=0.5)
        for mine, other in zip(ours.counts, theirs.counts, strict=True):
            one, two = decode(mine, ours.size).astype(bool), decode(other, ours.size).astype(bool)
            assert jaccard_score(two.ravel(), one.ravel(), zero_division=1) > 0.9 or not two.any()


def test_another_encoder_is_refused(world):
    encoder, _, _, path = world
    with pytest.raises(BeyondClsError, match=r"has weights .*; load 'tiny' as it was extracted"):
        online_detector(tiny_encoder(1, img_size=encoder.config["input_size"][1:]), path)
    detector, about = load_detector_with(path)
    for changed, message in (
        ({"block": 9}, "there is no block 9: the encoder has blocks 0 to 1"),
        ({"block": None}, "the probe's block is None, expected a number from 0 on"),
        ({"classes": ["a"]}, "the probe has 1 names of classes, expected 2"),
        ({"encoder_weights": "other"}, "has weights other; 'tiny' has "),
    ):
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
