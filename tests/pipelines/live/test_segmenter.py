"""A head for patches on its live encoder gives what it gives from cached tokens."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import beyondcls
from extract.datasets import open_images
from extract.run import extract
from pipelines.live.detections import online_detector
from pipelines.live.segmenter import Segmenter
from probe.detection.detector import Detector, save_detector
from probe.detection.recipe import DetectorOptions
from probe.head import FinalNorm
from probe.segmentation.evaluate import ModelPredictions, evaluate
from probe.segmentation.label_maps import LabelMapsOfView
from probe.segmentation.patch_head import PatchHead, save_patch_head
from probe.segmentation.patches import Patches
from probe.sources import Source
from store import BeyondClsError
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder
from tests.probe.detection.tiny import OPTIONS
from tests.truths import with_truths


def images_and_encoder(folder):
    """Four images, and a tiny encoder; random numbers from 0 on."""
    torch.manual_seed(0)
    return open_images(str(write_tar(folder / "000.tar", samples(4)))), tiny_encoder()


def head(dim, grid, norm=None, n_classes=3):
    return PatchHead(torch.randn(dim), torch.rand(dim) + 0.5, torch.randn(n_classes, dim), torch.randn(n_classes), grid, norm)


@pytest.mark.parametrize("final_norm", [False, True])
def test_logits_are_those_of_cached_tokens(tmp_path, final_norm):
    data, encoder = images_and_encoder(tmp_path)
    store = extract(encoder, data, tmp_path / "set", blocks=(0, 1), statistics=())
    source, norm = Source(store, block=0), FinalNorm.from_store(store) if final_norm else None
    made = head(source.dim, store.grid, norm)
    save_patch_head(tmp_path / "linear/seed0", made, {**source.description, "classes": ["a", "b", "c"]})
    model = beyondcls.online(encoder, tmp_path / "linear/seed0.safetensors")
    tokens = torch.from_numpy(store.tokens("patch", 0).rows(range(4))).float()
    (images,) = model.prepare([data.image(row) for row in range(4)])
    logits = model(images)
    assert logits.shape == (4, 3, *store.grid)
    normalised = tokens if norm is None else norm({"patch": tokens})["patch"]
    cached = ((normalised - made.mean) * made.scale) @ made.weight.T + made.bias
    torch.testing.assert_close(logits.flatten(2).mT, cached, rtol=2e-2, atol=2e-2)  # float16 in the store
    torch.testing.assert_close(model(images, (32, 24)), F.interpolate(logits, size=(32, 24), mode="bilinear"))
    assert model.classes == ("a", "b", "c")
    assert not model.train().training, "stays in evaluation mode"
    with pytest.raises(BeyondClsError, match="train a probe on features of 'tiny'"):
        beyondcls.online(tiny_encoder(5), tmp_path / "linear/seed0")
    with pytest.raises(BeyondClsError, match=r"tiny gives patches \[16, 32\], the head was trained on \[6, 32\]"):
        Segmenter(encoder, head(source.dim, (2, 3)), {"block": 0, "classes": ["a", "b", "c"]})
    file = tmp_path / "linear/seed0.json"
    about = json.loads(file.read_text())
    for changed, message in (
        ({"block": 9}, "there is no block 9"),
        ({"block": "last"}, "the probe's block is 'last', expected a number"),
        ({"classes": ["a"]}, "the probe has 1 names of classes, expected 3"),
        ({"classes": None}, "seed0 has no names of classes"),
    ):
        file.write_text(json.dumps(about | changed))
        with pytest.raises(BeyondClsError, match=message):
            beyondcls.online(encoder, tmp_path / "linear/seed0")


@pytest.mark.parametrize("protocol", ["linear", "logistic"])
def test_label_maps_are_those_that_are_measured(tmp_path, protocol):
    """In pixels of each picture, of which the crop shows a part; pixels of `logistic` have the class of their patch."""
    data, encoder = images_and_encoder(tmp_path)
    plain = extract(encoder, data, tmp_path / "plain", statistics=())
    pictures = [data.image(row) for row in range(4)]
    sizes = [(picture.height, picture.width) for picture in pictures]
    store = with_truths(plain, tmp_path / "set", maps=[np.zeros(size, np.int16) for size in sizes], map_classes="abc")
    source = Source(store)
    made = head(source.dim, store.grid)
    save_patch_head(tmp_path / "seed0", made, {**source.description, "classes": ["a", "b", "c"], "protocol": protocol})
    live = beyondcls.online(encoder, tmp_path / "seed0").label_maps(pictures)
    measured = {}
    patches = Patches(source, np.arange(4), store.segmentation.patch_labels(), 3)
    models = {protocol: ModelPredictions(head=made, interpolated=protocol == "linear")}
    evaluate(patches, models, ["original"], LabelMapsOfView(store), lambda _, row, label_map: measured.update({row: label_map}))
    for row, label_map in enumerate(live):
        assert label_map.shape == sizes[row]
        np.testing.assert_array_equal(label_map < 0, measured[row] < 0)
        assert (label_map == measured[row]).mean() > 0.98, "but for float16 in the store"


def test_damaged_heads_are_refused(tmp_path):
    save_patch_head(tmp_path / "seed0", head(2, (1, 1)), {})
    described = json.loads((tmp_path / "seed0.json").read_text())
    for changed, message in (({"format_version": 9}, "version 9, expected 1"), ({"n_classes": 4}, "is not a readable head")):
        (tmp_path / "seed0.json").write_text(json.dumps(described | changed))
        with pytest.raises(BeyondClsError, match=message):
            beyondcls.online("tiny", tmp_path / "seed0")


def test_an_encoder_by_its_name_sees_what_was_recorded(tmp_path):
    """Heads and detectors; options that are given win, and other widths are refused."""
    encoder = beyondcls.load_encoder("quickstart-random", random_seed=0, crop_mode="squash", input_size=40)
    about = {"encoder": encoder.name, "encoder_weights": encoder.weights, "architecture": encoder.architecture}
    about |= {"transform": encoder.described_transform, "block": 0, "classes": ["a", "b"]}
    dim, options = encoder.model.embed_dim, DetectorOptions(**OPTIONS)
    save_patch_head(tmp_path / "head", head(dim, encoder.grid, n_classes=2), about)
    save_detector(tmp_path / "detector", Detector(dim, encoder.grid, 2, options), about)
    for load, name in ((beyondcls.online, "head"), (online_detector, "detector")):
        model = load("quickstart-random", tmp_path / name)
        assert model.encoder.described_transform == encoder.described_transform
        with pytest.raises(BeyondClsError, match=r"sees crop_mode squash \(not center\)"):
            load("quickstart-random", tmp_path / name, crop_mode="center")
    with pytest.raises(BeyondClsError, match=rf"patches, {dim} wide; the detector was trained on .*, 7 wide"):
        online_detector(encoder, Detector(7, encoder.grid, 2, options))
