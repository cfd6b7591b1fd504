"""CAPI: rotation by position in its own architecture; one file for each set of images."""

import math

import pytest
import torch

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.capi import initial_frequencies


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
    small = {"img_size": 56, "depth": 1, "dim": 32, "n_heads": 2}
    encoder = load_encoder("capi-l14", random_seed=0, arguments=small)
    assert encoder.described_transform["input_size"] == [3, 56, 56]
    assert encoder(torch.zeros(1, 3, 56, 56), [0], encoder.statistics).patch[0].shape == (1, 16, 32)


def test_published_for_four_sets_of_images() -> None:
    files = {ENCODERS[name].weights.rsplit("/", 1)[-1] for name in ENCODERS if name.startswith("capi-")}
    assert files == {f"capi_vitl14_{images}.pth" for images in ("in1k", "i22k", "lvd", "p205")}
