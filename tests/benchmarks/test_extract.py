"""The naive way to the statistics, against which extraction is timed, gives the same numbers."""

import pytest
import torch

from benchmarks.extract import WAYS, Bench, naive
from tests.extract.tiny import sharpen, tiny_encoder


def test_naive_statistics_are_the_same() -> None:
    encoder, images, maps = tiny_encoder(), torch.randn(3, 3, 32, 32), []
    sharpen(encoder.model, 8)
    names = ("cls_self", "cls_patch_entropy", "patch_self", "patch_patch_entropy")
    given = encoder(images, [1], names).statistics
    for block in encoder.model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _module, _input, out: maps.append(out))
    with torch.inference_mode():
        encoder.model.forward_features(images)
    for name, expected in zip(names, naive(torch.stack(maps)), strict=True):
        torch.testing.assert_close(given[name], expected.transpose(0, 1), rtol=0, atol=2e-4)  # it adds 1e-6 in logarithms


@pytest.mark.parametrize("way", WAYS)
def test_every_way_runs(way: str) -> None:
    bench = Bench(2, 1, "cpu", "none", None)
    assert bench.run(way) > 0
    assert all(block.attn.fused_attn for block in bench.model.blocks)
