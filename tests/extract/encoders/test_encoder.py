"""What an encoder gives: tokens by block, maps, norm."""

import shutil
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from extract.attention import PER_BLOCK, STATISTICS, centre, facts_of
from extract.encoders import Encoder
from extract.encoders import encoder as encoder_file
from store import BeyondClsError
from tests import shapes
from tests.extract.tiny import sharpen, tiny_encoder

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_only_what_was_asked_for():
    encoded = tiny_encoder()(IMAGES, [1], ["patch_self"])
    assert encoded.patch.keys() == encoded.cls.keys() == {1}
    assert encoded.statistics.keys() == {"patch_self"}
    assert encoded.registers == encoded.maps == {}


def test_statistics_of_all_blocks_at_once_are_those_of_each(monkeypatch):
    """To the bit. Those of other packages, which may be of anything in a block, get one block at a time."""
    encoder, seen = tiny_encoder(depth=3, reg_tokens=1), []
    together = encoder(IMAGES, [1], encoder.statistics).statistics

    class OfOthers(dict):
        own: ClassVar[dict[str, Any]] = {}

        def __getitem__(self, name):
            return lambda attention: seen.append(attention.z.shape) or super(OfOthers, self).__getitem__(name)(attention)

    monkeypatch.setattr("extract.encoders.encoded.STATISTICS", OfOthers(STATISTICS))
    monkeypatch.setattr("extract.encoders.encoded.facts_of", lambda name: replace(facts_of(name), of_norms=False))
    block_by_block = encoder(IMAGES, [1], together.keys()).statistics
    assert together.keys() == block_by_block.keys() == {*STATISTICS, *PER_BLOCK}
    assert all(torch.equal(together[name], values) for name, values in block_by_block.items())
    assert seen == 3 * len(STATISTICS) * [(3, 2, 18)]


def test_tokens_survive_a_next_block_that_works_in_place():
    model = tiny_encoder().model
    expected = Encoder("tiny", model, {})(IMAGES, [0])
    model.blocks[1] = nn.Threshold(torch.inf, 0, inplace=True)
    encoded = Encoder("tiny", model, {})(IMAGES, [0, 1])
    assert torch.equal(encoded.patch[0], expected.patch[0])
    assert torch.equal(encoded.cls[0], expected.cls[0])
    assert not encoded.patch[1].any()


@pytest.mark.parametrize(
    ("patches", "index"),
    [((16,), 10), ((12,), 6), ((24, (4, 6)), 15), ((15, (3, 5)), 7), ((24, (5, 5)), 12)],
)
def test_centre(patches, index):
    assert centre(*patches) == index


@pytest.mark.parametrize(
    ("how", "tolerance"),
    [
        ({"channels_last": True}, 1e-5),
        pytest.param({"compile": True}, 1e-5, marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")),
        ({"amp": "bf16"}, 0.1),
    ],
    ids=str,
)
def test_how_to_compute(how, tolerance, monkeypatch):
    """The same features, but for what fewer bits make of them."""
    monkeypatch.setattr(shapes, "OFTEN", 0)  # torch.compile would compile the checks of shapes too
    plain, other = tiny_encoder(), tiny_encoder()
    for encoder in (plain, other) if "amp" not in how else ():
        sharpen(encoder.model, 8)
    other.run_with(**how)
    assert (plain.compute_dtype, other.compute_dtype) == ("float32", "bfloat16" if "amp" in how else "float32")
    given, expected = (e(IMAGES, [1], ["cls_self"], maps=[1]) for e in (other, plain))
    for part in ("patch", "statistics", "maps"):
        torch.testing.assert_close(getattr(given, part), getattr(expected, part), rtol=0, atol=tolerance)
    difference = (given.patch[1] - expected.patch[1]).abs().max()
    assert ("amp" in how) == (difference > 1e-4)
    torch.testing.assert_close(given.statistics["cls_self"], expected.statistics["cls_self"], rtol=0, atol=1e-3)


def test_unknown_precision():
    with pytest.raises(BeyondClsError, match="unknown amp 'bf61'; did you mean 'bf16'"):
        tiny_encoder().run_with(amp="bf61")


def test_convolutions_on_a_gpu_are_in_float32():
    before = torch.backends.cudnn.allow_tf32
    with encoder_file.exact_convolutions():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
