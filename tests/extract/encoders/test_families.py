"""Facts of single families that the contract of encoders does not see: what is listed, what timm gives, CAPI, tuned MAE."""

import math

import pytest
import timm
import torch

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.capi import initial_frequencies
from extract.encoders.pretrained import cls_caution, listing_of, timm_model
from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.saved import load_probe, save_probe
from tests.extract.encoders.official import loaded, written
from tests.extract.encoders.published import PUBLISHED
from tests.extract.extracting import extract

SMALL = {"img_size": 56, "depth": 1, "dim": 32, "n_heads": 2}


def test_frequencies_at_the_start():
    """7 to 0.0007 turns per image side; rows turn the first half of channels, columns the second."""
    frequencies = initial_frequencies(64)
    turns = frequencies / (2 * math.pi)
    torch.testing.assert_close(turns[0, :16].log10().diff(), torch.full((15,), -4 / 15))
    assert turns[0, 0].item() == pytest.approx(7)
    assert torch.equal(turns[0, :16], turns[0, 16:32])
    assert torch.equal(turns[0, :32], turns[1, 32:])
    assert not turns[0, 32:].any()
    assert not turns[1, :32].any()


def test_another_image_size():
    """Positions are fractions of the image: there is nothing to interpolate."""
    encoder = load_encoder("capi-l14", random_seed=0, arguments=SMALL)
    assert (encoder.described_transform["input_size"], encoder.grid) == ([3, 56, 56], (4, 4))
    assert encoder(torch.zeros(1, 3, 56, 56), [0], encoder.statistics).patch[0].shape == (1, 16, 32)


def test_heads_apply_its_final_norm(forty, tmp_path):
    """By the root mean square, without parameters; from features as from a saved head."""
    encoder = load_encoder("capi-l14", random_seed=0, arguments=SMALL)
    store = extract(encoder, forty.part(range(4)), tmp_path / "features", dtype="float32")
    assert "norm/weight" not in store.arrays
    norm, spec = FinalNorm.from_store(store), HeadSpec("average", final_norm=True)
    tokens = torch.from_numpy(store.tokens("patch").all())
    inputs = torch.stack([encoder.views.cut(forty.image(row), "x", 0)[0] for row in range(4)])
    expected = encoder.model.forward_features(encoder.normalised(inputs))[:, 16:]
    torch.testing.assert_close(norm({"patch": tokens})["patch"], expected, rtol=1e-4, atol=1e-4)
    head = spec.build(32, 16, 3, norm).eval()
    save_probe(tmp_path / "p", head, spec, 16, {})
    loaded = load_probe(tmp_path / "p")
    assert torch.equal(loaded({"patch": tokens})[0], head({"patch": tokens})[0])


AVERAGED, CLS = 0, 1
FILES = PUBLISHED["mae-ft-s16"]


def test_classifier_decides_the_architecture(tmp_path):
    for kind, pooling in ((AVERAGED, "avg"), (CLS, "token")):
        file, arguments = FILES[kind].smaller()
        assert f'"global_pool": "{pooling}"' in loaded("mae-ft-s16", written(file), tmp_path, **arguments).architecture


def test_cls_of_a_model_that_was_fine_tuned_through_the_average(tmp_path):
    (averaged, arguments), (cls, _) = (FILES[kind].smaller() for kind in (AVERAGED, CLS))
    caution = loaded("mae-ft-s16", written(averaged), tmp_path, **arguments).cls_caution
    assert caution.startswith("fine-tuned through the average of its patch tokens, not through [cls]")
    assert loaded("mae-ft-s16", written(cls), tmp_path, **arguments).cls_caution == ""
    assert load_encoder("mae-ft-s16", random_seed=0, arguments=arguments).cls_caution == "", "it was not trained at all"


def test_nothing_is_said_of_cls_where_there_is_none():
    tiny = {"embed_dim": 32, "depth": 1, "num_heads": 2, "global_pool": "avg", "fc_norm": True}
    with_cls, without = (timm_model("vit_tiny_patch16_224", class_token=has, **tiny) for has in (True, False))
    assert cls_caution(with_cls)
    assert cls_caution(without) == ""


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("augreg-s16", "vit_small_patch16_224.augreg_in1k"),
        ("augreg-b16", "vit_base_patch16_224.augreg_in1k"),
        ("vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_224.augreg_in21k"),  # which no entry has
    ],
)
def test_weights_come_from_the_hub(name, tag, monkeypatch):
    made, create = [], timm.create_model

    def offline(model, pretrained, **arguments):
        made.append((model, pretrained, arguments["num_classes"]))
        return create(model, pretrained=False, **arguments)

    known = timm.get_pretrained_cfg(tag)
    assert known.hf_hub_id == f"timm/{tag}", "timm knows these weights"
    monkeypatch.setattr(timm, "create_model", offline)
    encoder = load_encoder(name, arguments={"depth": 1})
    assert made == [(tag, True, 0)]
    assert "augreg" not in encoder.architecture, "weights have their own digest"


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize(
    ("model", "side", "block", "shape"),
    [("convnext_atto.d2_in1k", 64, 3, (1, 4, 320)), ("gmlp_ti16_224", 224, 1, (1, 196, 128))],
)
def test_without_attention(model, side, block, shape, hub, monkeypatch):
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **arguments: create(name, **arguments))
    encoder = load_encoder(model, random_seed=None if hub else 0)
    assert not encoder.attends
    assert encoder(torch.zeros(1, 3, side, side), [block]).patch[block].shape == shape


@pytest.mark.parametrize(
    ("name", "millions", "tokens", "block"),
    [
        ("mae-b16", 85.8, "[cls] + 196", 11),
        ("simmim-b16", 85.8, "[cls] + 196", 8),
        ("ijepa-h14", 630.8, "256", 31),
        ("capi-l14", 302.7, "16 registers + 256", 23),
        ("dinov2-reg-s14", 21.6, "[cls] + 4 registers + 256", 11),
        ("convnext-b", 87.6, "49", 3),
        ("mixer-b16", 59.1, "196", 11),
    ],
)
def test_known_sizes(name, millions, tokens, block):
    of = listing_of(ENCODERS[name])
    assert of.n_parameters / 1e6 == pytest.approx(millions, abs=0.05)
    assert (of.tokens, of.block) == (tokens, block)


# mean and std, share of the side that is kept; timm's BEiT has 0.5, BEiT v2 not (--imagenet_default_mean_and_std)
SEEN = {
    "quickstart": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 1.0),
    **dict.fromkeys(("augreg", "mixer"), ((0.5,) * 3, (0.5,) * 3, 0.875)),
}
SEEN_BY_OTHERS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 0.875)


@pytest.mark.parametrize("name", ENCODERS)
def test_transform_is_that_of_the_official_code(name):
    """The input size is compared by the contract."""
    seen = {"crop_mode": "center", **ENCODERS[name].transform}
    assert (seen["mean"], seen["std"], seen["crop_pct"]) == SEEN.get(name.split("-")[0], SEEN_BY_OTHERS)
    assert (seen["crop_mode"], seen["interpolation"]) == ("center", "bicubic")
