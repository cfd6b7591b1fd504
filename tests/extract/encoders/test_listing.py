"""The registry: what `beyondcls encoders` lists, and what the official code shows its encoders."""

import pytest

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.pretrained import listing_of


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


@pytest.mark.parametrize(("name", "block"), [("simmim-b16", 8), ("simmim-ft-b16", 11)])
def test_block_that_is_read(name: str, block: int) -> None:
    encoder = load_encoder(name, random_seed=0, arguments={"embed_dim": 24, "num_heads": 2})
    assert encoder.block == listing_of(ENCODERS[name]).block == block
