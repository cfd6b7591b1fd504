"""DeiT's official files, and AugReg through timm."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from extract.encoders import load_encoder
from store import BeyondClsError
from store.errors import BeyondClsWarning
from tests.extract.encoders.official import (
    Shapes,
    assert_equal,
    assert_fits,
    double,
    empty_state,
    heads_of,
    loaded,
    random_images,
    random_state,
    vit_shapes,
)
from tests.extract.encoders.reference import vit

SIZES = {"s16": (384, 6), "b16": (768, 12)}
DEPTH = 2


def official(width: int, depth: int = DEPTH) -> Shapes:
    return {**vit_shapes(width, depth, 16, 197), "head.weight": (1000, width), "head.bias": (1000,)}


@pytest.mark.parametrize("family", ["deit", "augreg"])
@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str, family: str) -> None:
    width, heads = SIZES[size]
    assert_fits(f"{family}-{size}", empty_state(official(width, 12)))
    assert heads_of(f"{family}-{size}") == heads


@pytest.mark.parametrize("size", SIZES)
def test_deit_equals_plain_torch(size: str, tmp_path: Path) -> None:
    width, heads = SIZES[size]
    state, images = random_state(official(width)), random_images()
    encoder = loaded(f"deit-{size}", {"model": state}, tmp_path, depth=DEPTH)
    assert_equal(encoder, images, vit(double(state), images.double(), heads))


def test_file_in_the_format_of_timm(tmp_path: Path) -> None:
    state, images = random_state(official(384)), random_images()
    save_file(state, tmp_path / "model.safetensors")
    with pytest.warns(BeyondClsWarning, match="augreg-s16: no name in .* tells how it was trained"):
        encoder = load_encoder("augreg-s16", checkpoint=tmp_path / "model.safetensors", arguments={"depth": DEPTH})
    assert_equal(encoder, images, vit(double(state), images.double(), 6))


@pytest.mark.parametrize(("name", "tag"), [("augreg-s16", "vit_small_patch16_224"), ("augreg-b16", "vit_base_patch16_224")])
def test_augreg_comes_from_the_hub(name: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, create = [], timm.create_model

    def offline(model: str, pretrained: bool, **arguments: Any) -> torch.nn.Module:
        made.append((model, pretrained, arguments["num_classes"]))
        return create(model, pretrained=False, **arguments)

    known: Any = timm.get_pretrained_cfg(f"{tag}.augreg_in1k")
    assert known.hf_hub_id == f"timm/{tag}.augreg_in1k", "timm knows these weights"
    monkeypatch.setattr(timm, "create_model", offline)
    load_encoder(name, arguments={"depth": 1})
    assert made == [(f"{tag}.augreg_in1k", True, 0)]


def test_distilled(tmp_path: Path) -> None:
    """It has a token more, and a second classifier."""
    shapes = {**official(384), "dist_token": (1, 1, 384), "pos_embed": (1, 198, 384), "head_dist.weight": (1000, 384)}
    with pytest.raises(
        BeyondClsError, match=r"unexpected: dist_token, head_dist\.weight; other shape: pos_embed \[1, 198, 384\]"
    ):
        loaded("deit-s16", {"model": random_state(shapes)}, tmp_path, depth=DEPTH)
