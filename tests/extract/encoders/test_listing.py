"""The registry: what `beyondcls encoders` lists, and what the official code shows its encoders."""

import pytest
import torch

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.listing import listing_of


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
    of = listing_of(ENCODERS[name])
    assert of.n_parameters / 1e6 == pytest.approx(millions, abs=0.05)
    assert (of.tokens, of.block) == (tokens, block)


HALF = ((0.5,) * 3, (0.5,) * 3)
SEEN = {
    # mean and std, share of the side that is kept
    "quickstart": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 1.0),
    **dict.fromkeys(("augreg", "mixer"), (*HALF, 0.875)),
    # timm's BEiT has 0.5, BEiT v2 not (--imagenet_default_mean_and_std)
    **dict.fromkeys(
        (
            "mae",
            "simmim",
            "maskfeat",
            "beitv2",
            "ijepa",
            "capi",
            "dino",
            "dinov2",
            "dinov3",
            "mocov3",
            "ibot",
            "deit",
            "convnext",
        ),
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 0.875),
    ),
}


@pytest.mark.parametrize("name", [name for name in ENCODERS if name.split("-")[0] in SEEN])
def test_transform_is_that_of_the_official_code(name: str) -> None:
    """The input size is compared by the contract."""
    seen = {"crop_mode": "center", **ENCODERS[name].transform}
    assert (seen["mean"], seen["std"], seen["crop_pct"]) == SEEN[name.split("-")[0]]
    assert (seen["crop_mode"], seen["interpolation"]) == ("center", "bicubic")


@pytest.mark.parametrize("name", ["quickstart-random", "mae-s16", "dinov2-reg-s14", "convnext-t"])
def test_listed_is_what_is_loaded(name: str) -> None:
    encoder, of = load_encoder(name, random_seed=0), listing_of(ENCODERS[name])
    encoded = encoder(torch.zeros(1, *encoder.config["input_size"]), [of.block], encoder.statistics, maps=[of.block])
    assert encoder.block == of.block
    assert encoded.patch[of.block].shape == (1, of.n_patches, of.width)
    assert bool(encoded.cls) == of.has_cls
    assert bool(encoded.statistics) == bool(encoded.maps) == of.attends
    if of.n_registers:
        assert encoded.registers[of.block].shape == (1, of.n_registers, of.width)
