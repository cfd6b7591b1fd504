"""The registry: every entry can be listed, made and run, and says where its weights and their licence come from."""

import re

import pytest
import torch

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.encoder import input_of
from extract.encoders.listing import listing_of

LISTINGS = {name: listing_of(entry) for name, entry in ENCODERS.items()}  # once: it takes a second for large encoders
SMALL = [name for name, listing in LISTINGS.items() if listing.n_parameters < 30e6]


@pytest.mark.parametrize("name", ENCODERS)
def test_every_entry(name: str) -> None:
    entry, of = ENCODERS[name], LISTINGS[name]
    assert of.n_parameters > 1e6
    assert 0 <= of.block < of.n_blocks
    assert of.n_patches > 0
    assert entry.licence
    assert re.match(r"https://|see https://|timm/\w+\.\w+$|quickstart/encoders/\w+\.safetensors$|random$", entry.weights)
    assert entry.digest is None or re.fullmatch("[0-9a-f]{64}", entry.digest)


def test_cautions() -> None:
    """Of entries whose published files were fine-tuned through the average although there is [cls]."""
    cautioned = {name for name, listing in LISTINGS.items() if listing.cls_caution}
    assert cautioned == {"mae-ft-s16", "mae-ft-b16", "mae-ft-l16", "mae-ft-h14", "simmim-ft-b16"}


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
def test_known_sizes(name: str, millions: float, tokens: str, block: int) -> None:
    of = LISTINGS[name]
    assert of.n_parameters / 1e6 == pytest.approx(millions, abs=0.05)
    assert (of.tokens, of.block) == (tokens, block)


@pytest.mark.parametrize("name", ENCODERS)
def test_transform_is_that_of_the_official_code(name: str) -> None:
    """ImageNet's constants but for three families. timm's BEiT has 0.5, BEiT v2 not (--imagenet_default_mean_and_std)."""
    entry = ENCODERS[name]
    shallow = {"convnext": {"depths": (1, 1, 1, 1)}, "mixer": {}}.get(name.split("-")[0], {"depth": 1})
    with torch.device("meta"):
        seen = input_of(entry.make(entry.model, **{**entry.arguments, **shallow}), entry.transform)
    mean, std = {
        "quickstart": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "augreg": ((0.5,) * 3, (0.5,) * 3),
        "mixer": ((0.5,) * 3, (0.5,) * 3),
    }.get(name.split("-")[0], ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    side = 32 if name.startswith("quickstart") else 448 if name.endswith("448") else 224
    assert (seen["mean"], seen["std"], seen["input_size"]) == (mean, std, (3, side, side))
    share = 1.0 if name.startswith("quickstart") else 0.875
    assert (seen["crop_pct"], seen["crop_mode"], seen["interpolation"]) == (share, "center", "bicubic")


@pytest.mark.parametrize("name", SMALL)
def test_listed_is_what_is_loaded(name: str) -> None:
    encoder, of = load_encoder(name, random_seed=0), LISTINGS[name]
    encoded = encoder(torch.zeros(1, *encoder.config["input_size"]), [of.block], encoder.statistics, maps=[of.block])
    assert encoder.block == of.block
    assert encoded.patch[of.block].shape == (1, of.n_patches, of.width)
    assert bool(encoded.cls) == of.has_cls
    assert bool(encoded.statistics) == bool(encoded.maps) == of.attends
    if of.n_registers:
        assert encoded.registers[of.block].shape == (1, of.n_registers, of.width)
