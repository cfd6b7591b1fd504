"""What comes from timm: weights of its hub, models without attention that no entry has, positions of DINOv2."""

from typing import Any

import pytest
import timm
import torch

from extract.encoders import load_encoder
from extract.encoders.dinov2 import at_224


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("augreg-s16", "vit_small_patch16_224.augreg_in1k"),
        ("augreg-b16", "vit_base_patch16_224.augreg_in1k"),
        ("vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_224.augreg_in21k"),  # which no entry has
    ],
)
def test_weights_come_from_the_hub(name: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, create = [], timm.create_model

    def offline(model: str, pretrained: bool, **arguments: Any) -> torch.nn.Module:
        made.append((model, pretrained, arguments["num_classes"]))
        return create(model, pretrained=False, **arguments)

    known: Any = timm.get_pretrained_cfg(tag)
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
def test_without_attention(
    model: str, side: int, block: int, shape: tuple[int, ...], hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **arguments: create(name, **arguments))
    encoder = load_encoder(model, random_seed=None if hub else 0)
    assert not encoder.attends
    assert encoder(torch.zeros(1, 3, side, side), [block]).patch[block].shape == shape


def test_positions_that_are_those_of_224() -> None:
    positions = torch.randn(1, 256, 8)
    assert at_224(positions, False) is positions
