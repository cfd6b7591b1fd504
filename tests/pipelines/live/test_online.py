"""A probe on its live encoder: what it checks, and how it is moved and shown images."""

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

import beyondcls
from extract.datasets import ImageSet, open_images
from extract.datasets.pixels import Pixels
from extract.encoders import Encoder
from extract.run import extract
from pipelines.live.online import grid_of, online
from pipelines.live.pictures import open_picture, open_pictures
from probe.grid import HeadPlan, HeadSpec
from probe.head import FinalNorm
from probe.recipe import Recipe
from probe.run import probe
from probe.saved import load_with
from store import BeyondClsError
from tests.extract.pictures import picture, samples, write_tar
from tests.extract.tiny import tiny_encoder

RECIPE = Recipe(epochs=1, batch_size=12, warmup_epochs=0)
WITHOUT_CLS = tiny_encoder(class_token=False, global_pool="avg")
SPECS = {"cls": HeadSpec("cls"), "abmilp": HeadSpec("abmilp"), "joined": HeadSpec("cls-attention", {"of": "joined"})}


@dataclass
class World:
    folder: Path
    encoder: Encoder
    joined: Encoder

    def probe(self, name: str, crop: float | None = None, **changes) -> Path:
        """Path of a trained probe; a copy whose description says something else, None standing for nothing at all."""
        path, copy = self.folder / "probes" / name / "trained/seed0", self.folder / "changed"
        about = json.loads(path.with_suffix(".json").read_text())
        if crop:
            changes["transform"] = {**about["transform"], "crop_pct": crop}
        if not changes:
            return path
        about = {field: value for field, value in (about | changes).items() if field not in changes or value is not None}
        copy.with_suffix(".json").write_text(json.dumps(about))
        copy.with_suffix(".safetensors").write_bytes(path.with_suffix(".safetensors").read_bytes())
        return copy


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("world")
    data = open_images(str(write_tar(folder / "data/000.tar", samples(24))))
    encoder, joined = tiny_encoder(), tiny_encoder(1, img_size=48, patch_size=12)
    stores = [extract(e, data, folder / name, statistics=()) for name, e in (("one", encoder), ("two", joined))]
    plans = {name: HeadPlan(spec, RECIPE, seeds=(0,)) for name, spec in SPECS.items()}
    probe(stores[0], stores[0], folder / "probes", plans, joined=(stores[1], stores[1]))
    return World(folder, encoder, joined)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_map_lies_as_the_patches(world):
    """The head looks at one patch only, where the image is bright."""
    model = online(world.encoder, world.probe("abmilp"))
    x = torch.zeros(1, 3, 32, 32)
    x[:, :, 8:16, 24:32] = 3.0  # second row, last column
    patch = model.features(x)["patch"]
    with torch.no_grad():
        model.head.aggregator.score[0].weight.copy_((patch[0, 7] - patch[0].mean(0))[None] * 1e3)
    assert model(x)[1][0].argmax() == 7


def test_computes_what_the_head_reads_and_no_more(world, images):
    with patch.object(Encoder, "__call__", autospec=True, side_effect=Encoder.__call__) as called:
        for name, blocks in (("cls", [((1,), ())]), ("joined", [((1,), ()), ((), (1,))])):
            model = online(world.encoder, world.probe(name), joined=world.joined if name == "joined" else None)
            called.reset_mock()
            model.features(images, *([torch.zeros(2, 3, 48, 48)] if name == "joined" else []))
            for call, (tokens, maps) in zip(called.call_args_list, blocks, strict=True):
                assert (call.args[2:], call.kwargs) == ((tokens,), {"maps": maps, "vectors": (), "pooled": False})


def test_the_attention_is_of_the_probed_block_too(world, tmp_path, images):
    data = open_images(str(world.folder / "data/000.tar"))
    store = extract(world.encoder, data, tmp_path / "both", blocks=(0, 1), statistics=())
    probe(store, store, tmp_path / "out", HeadPlan(HeadSpec("cls-attention"), RECIPE, seeds=(0,)), block=0)
    head, about = load_with(tmp_path / "out/trained/seed0")
    encoded = world.encoder(images, (0,), maps=(0, 1))
    features = online(world.encoder, head, description=about).features(images)
    assert torch.equal(features["patch"], encoded.patch[0])
    assert torch.equal(features["attention/cls"], encoded.maps["cls/block0"])
    del about["attention_block"]
    for wrong in ({}, {"attention_block": "x"}):
        with pytest.raises(BeyondClsError, match=r"attention_block is (None|'x'), expected a number .*; train it again"):
            online(world.encoder, head, description=about | wrong)


def test_maps_of_the_second_encoder_are_of_its_recorded_block(world, tmp_path, images):
    data, deep = open_images(str(world.folder / "data/000.tar")), tiny_encoder(1, depth=3, img_size=48, patch_size=12)
    first, other = beyondcls.open_store(world.folder / "one"), extract(deep, data, tmp_path / "two", blocks=(0,), statistics=())
    probe(first, first, tmp_path / "out", HeadPlan(SPECS["joined"], RECIPE, seeds=(0,)), joined=(other, other))
    second = torch.randn(2, 3, 48, 48)
    features = online(world.encoder, tmp_path / "out/trained/seed0", joined=deep).features(images, second)
    assert torch.equal(features["joined/attention/cls"], deep(second, (), maps=(0,)).maps["cls/block0"])
    assert torch.equal(features["patch"], world.encoder(images, (1,)).patch[1])


def test_several_labels_are_recorded(world, tmp_path):
    data = open_images(str(world.folder / "data/000.tar"))
    several = [replace(sample, labels=(0, sample.label) if sample.label else ()) for sample in data.samples]
    images = ImageSet("several", several, ["a", "b", "c"], multilabel=True)
    store = extract(world.encoder, images, tmp_path / "set", statistics=())
    probe(store, store, tmp_path / "out", HeadPlan(SPECS["cls"], RECIPE, seeds=(0,)))
    assert online(world.encoder, tmp_path / "out/trained/seed0").multilabel
    plain = online(world.encoder, world.probe("cls", classes=["a", "b", "c"]))
    assert (plain.multilabel, plain.classes) == (False, ("a", "b", "c"))


def test_stays_in_evaluation_mode_and_leaves_the_head_alone(world, images):
    head, about = load_with(world.probe("abmilp"))
    head.train()
    model = online(world.encoder, head, description=about)
    assert head.training
    mean = head.norm.running_mean.clone()
    before = model(images)[0]
    model.train()
    assert not any(module.training for module in model.modules())
    assert torch.equal(model(images)[0], before)
    assert torch.equal(head.norm.running_mean, mean)


def test_moves_with_all_its_parts(world, images, monkeypatch):
    """The meta device stands for a GPU: what stays behind cannot be computed with there."""
    encoder, joined = tiny_encoder(), tiny_encoder(1, img_size=48, patch_size=12)
    model = online(encoder, world.probe("joined"), joined=joined).to("meta")
    assert encoder.device.type == joined.device.type == "meta"
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}
    assert {values.device.type for values in model.prepare(Image.new("RGB", (40, 40)))} == {"meta"}
    monkeypatch.setattr(Encoder, "autocast", lambda *_: nullcontext())
    logits, maps = online(tiny_encoder(), world.probe("abmilp")).to("meta")(images.to("meta"))
    assert logits.device.type == maps.device.type == "meta"


class TestPictures:
    def test_are_cut_as_for_extraction(self, world, tmp_path):
        file = tmp_path / "a.png"
        file.write_bytes(picture(3))
        data = open_images(str(world.folder / "data/000.tar"))
        model = online(world.encoder, world.probe("abmilp"))
        (one,) = model.prepare([file, Image.open(file)])
        assert torch.equal(one[0], world.encoder.transform(data.image(3)))
        assert torch.equal(one[0], one[1])
        assert torch.equal(model.prepare(str(file))[0], one[:1])

    def test_are_rgb_of_8_bits_or_refused(self, world, tmp_path):
        grey = Image.new("LA", (9, 9), (7, 100))
        grey.save(tmp_path / "grey.png")
        model = online(world.encoder, world.probe("cls"))
        assert torch.equal(model.prepare(grey)[0], model.prepare(tmp_path / "grey.png")[0])
        assert open_picture(tmp_path / "grey.png").mode == "RGB"
        (tmp_path / "a.png").write_bytes(picture(0)[:99])
        with pytest.raises(BeyondClsError, match=r"'a\.png' in .*a\.png cannot be decoded"):
            open_picture(tmp_path / "a.png")
        deep = Image.fromarray(np.full((4, 4), 1000, np.int32))
        with pytest.raises(BeyondClsError, match=r"cannot be shown: its values, 1000 to 1000, .*--scale 0,65535"):
            open_pictures(deep)
        assert open_pictures(deep, Pixels(scale=(0, 2000)))[0].getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda w: online(tiny_encoder(9), w.probe("cls")), r"weights .*'tiny' has .*load 'tiny' as it was extracted"),
        (lambda w: online(w.encoder, w.probe("cls", crop=0.5)), r"crop_pct 0\.5 \(not 0\.9\), .*--crop-pct 0\.5"),
        (lambda w: online(w.encoder, w.probe("cls", architecture="other")), "architecture other"),
        (lambda w: online(w.encoder, w.probe("cls", encoder_weights=None)), "encoder_weights of its encoder; train it again"),
        (lambda w: online(w.encoder, w.probe("joined", joined_encoder=None), joined=w.joined), "of its second encoder"),
        (lambda w: online(w.encoder, w.probe("cls", block="1")), "block is '1'"),
        (lambda w: online(w.encoder, w.probe("cls", block=7)), "no block 7"),
        (lambda w: online(w.encoder, w.probe("joined")), r"'joined/attention/cls', of a second encoder \('tiny'\)"),
        (lambda w: online(w.encoder, w.probe("cls"), joined=w.joined), "nothing of a second encoder; leave out tiny"),
        (lambda w: online(w.encoder, w.probe("joined"), joined=tiny_encoder(8)), "second encoder, 'tiny', has weights"),
        (lambda w: online(w.encoder, w.probe("abmilp", n_patches=25)), "16 patches an image, .* 25"),
        (lambda w: online(w.encoder, w.probe("cls", classes=["a", "b"])), "2 names of classes, expected 3"),
        (lambda w: online(WITHOUT_CLS, HeadSpec("cls").build(32, 16, 3)), "no cls/block1; it has: patch/block1"),
        (lambda w: online(w.encoder, HeadSpec("abmilp").build(64, 16, 3)), "32 wide, .* 64"),
        (lambda w: online(w.encoder, w.probe("cls"))(torch.zeros(2, 3, 32, 16)), r"\[2, 3, 32, 16\], .*\[B, 3, 32, 32\]"),
        (lambda w: online(w.encoder, w.probe("joined"), joined=w.joined)(torch.zeros(2, 3, 32, 32)), "give both"),
        (lambda w: online(w.encoder, w.probe("cls"), description={}), "its own description"),
        (lambda w: online(w.encoder, load_with(w.probe("cls"))[0], own="a.py:B"), "a head already"),
        (lambda w: online(w.encoder, w.probe("cls"), mean=(0, 0, 0)), "give mean to load_encoder"),
        (lambda w: online(w.encoder, w.probe("cls")).prepare("gone.png"), r"'gone\.png'"),
        (lambda w: online(w.encoder, w.probe("cls")).prepare([]), "no pictures"),
    ],
)
def test_what_is_refused(call, named, world):
    with pytest.raises(BeyondClsError, match=named):
        call(world)


def test_an_encoder_by_its_name_sees_what_the_probe_records(tmp_path):
    """Also where its default is another: here the whole image, of twice the side."""
    data = open_images(str(write_tar(tmp_path / "data/000.tar", samples(24))))
    view_options = {"crop_mode": "squash", "mean": (0.5, 0.5, 0.5), "input_size": 40}
    encoders = [beyondcls.load_encoder("quickstart-random", random_seed=seed, **view_options) for seed in (0, 1)]
    stores = [extract(e, data, tmp_path / f"{i}", statistics=()) for i, e in enumerate(encoders)]
    plans = {name: HeadPlan(SPECS[name], RECIPE, seeds=(0,)) for name in ("abmilp", "joined")}
    probe(stores[0], stores[0], tmp_path / "out", plans, joined=(stores[1], stores[1]))
    images, path = [data.image(row) for row in range(2)], tmp_path / "out/abmilp/trained/seed0"
    expected, model = online(encoders[0], path), online("quickstart-random", path)
    assert model.encoder.described_transform == encoders[0].described_transform
    for given, same in zip(model(*model.prepare(images)), expected(*expected.prepare(images)), strict=True):
        assert torch.equal(given, same)
    with pytest.raises(BeyondClsError, match=r"sees crop_mode squash \(not center\), .* load it with --crop-mode squash"):
        online("quickstart-random", path, crop_mode="center")
    both = online("quickstart-random", tmp_path / "out/joined/trained/seed0", joined=encoders[1])
    assert both.encoder.described_transform == both.joined.described_transform


def test_a_head_without_description_and_the_grid(world, images):
    norm = FinalNorm(torch.rand(32), torch.rand(32), 1e-6)
    model = online(world.encoder, HeadSpec("abmilp", final_norm=True).build(32, 16, 5, norm))
    assert (model.classes, model(images)[0].shape) == (None, (2, 5))
    assert grid_of(tiny_encoder(), 16) == (4, 4)
    wide = tiny_encoder(img_size=(32, 64))
    assert grid_of(wide, 32) == (4, 8)
    assert grid_of(wide, 7) is None
    model = online(wide, HeadSpec("average").build(32, 32, 2))
    assert model(torch.zeros(1, 3, 32, 64))[1].shape == (1, 4, 8)
