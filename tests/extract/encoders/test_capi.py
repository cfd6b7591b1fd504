"""CAPI: rotation by position in its own architecture; one file for each set of images."""

import math
from pathlib import Path

import pytest
import torch

from extract.datasets import ImageSet
from extract.encoders import ENCODERS, load_encoder
from extract.encoders.capi import initial_frequencies
from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.saved import load_probe, save_probe
from tests.extract.extracting import extract

SMALL = {"img_size": 56, "depth": 1, "dim": 32, "n_heads": 2}


def test_frequencies_at_the_start() -> None:
    """7 to 0.0007 turns per image side; rows turn the first half of channels, columns the second."""
    frequencies = initial_frequencies(64)
    turns = frequencies / (2 * math.pi)
    torch.testing.assert_close(turns[0, :16].log10().diff(), torch.full((15,), -4 / 15))
    assert turns[0, 0].item() == pytest.approx(7)
    assert torch.equal(turns[0, :16], turns[0, 16:32])
    assert torch.equal(turns[0, :32], turns[1, 32:])
    assert not turns[0, 32:].any()
    assert not turns[1, :32].any()


def test_another_image_size() -> None:
    """Positions are fractions of the image: there is nothing to interpolate."""
    encoder = load_encoder("capi-l14", random_seed=0, arguments=SMALL)
    assert encoder.described_transform["input_size"] == [3, 56, 56]
    assert encoder(torch.zeros(1, 3, 56, 56), [0], encoder.statistics).patch[0].shape == (1, 16, 32)


def test_published_for_four_sets_of_images() -> None:
    files = {ENCODERS[name].weights.rsplit("/", 1)[-1] for name in ENCODERS if name.startswith("capi-")}
    assert files == {f"capi_vitl14_{images}.pth" for images in ("in1k", "i22k", "lvd", "p205")}


def test_heads_apply_its_final_norm(forty: ImageSet, tmp_path: Path) -> None:
    """By the root mean square, without parameters; from features as from a saved head."""
    encoder = load_encoder("capi-l14", random_seed=0, arguments=SMALL)
    store = extract(encoder, forty.part(range(4)), tmp_path / "features", dtype="float32")
    assert store is not None
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
