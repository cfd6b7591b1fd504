"""MAE: official checkpoints, with and without the decoder."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch

from store import BeyondClsError
from tests.extract.encoders.official import assert_equal, double, loaded, random_images, random_state, shapes_of, vit_shapes
from tests.extract.encoders.reference import vit

SIZES = {"s16": (384, 12, 6, 16), "b16": (768, 12, 12, 16), "l16": (1024, 24, 16, 16), "h14": (1280, 32, 16, 14)}
DEPTH = 2  # of those in which every value is compared


def official(width: int, patch: int, depth: int = DEPTH) -> dict[str, torch.Tensor]:
    return random_state(vit_shapes(width, depth, patch, 1 + (224 // patch) ** 2))


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    width, depth, _, patch = SIZES[size]
    assert shapes_of(f"mae-{size}") == vit_shapes(width, depth, patch, 1 + (224 // patch) ** 2)


@pytest.mark.parametrize("size", SIZES)
def test_equals_plain_torch(size: str, tmp_path: Path) -> None:
    width, _, heads, patch = SIZES[size]
    state, images = official(width, patch), random_images()
    encoder = loaded(f"mae-{size}", {"model": state}, tmp_path, depth=DEPTH)
    assert_equal(encoder, images, vit(double(state), images.double(), heads))


def test_decoder_is_dropped(tmp_path: Path) -> None:
    """As the training script writes it."""
    state = official(384, 16)
    decoder = {"mask_token": (1, 1, 512), "decoder_pos_embed": (1, 197, 512), "decoder_blocks.0.norm1.weight": (512,)}
    whole = {"model": {**state, **random_state(decoder)}, "optimizer": {"lr": 0.1}, "args": Namespace(blr=1e-3), "epoch": 800}
    encoder = loaded("mae-s16", whole, tmp_path, depth=DEPTH)
    assert encoder.weights == loaded("mae-s16", {"model": state}, tmp_path, depth=DEPTH).weights


def test_unknown_and_missing_tensors_are_named(tmp_path: Path) -> None:
    state = official(384, 16)
    state["blocks.0.attn.relative_position_bias_table"] = state.pop("blocks.1.norm2.bias")
    with pytest.raises(BeyondClsError, match=r"missing: blocks\.1\.norm2\.bias; unexpected: blocks\.0\.attn\.relative_pos"):
        loaded("mae-s16", {"model": state}, tmp_path, depth=DEPTH)


def test_of_another_size(tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=r"other shape: blocks\.0\.attn\.proj\.bias \[384\] for \[768\]"):
        loaded("mae-b16", {"model": official(384, 16)}, tmp_path, depth=DEPTH)


def test_diverged(tmp_path: Path) -> None:
    state = official(384, 16)
    state["norm.weight"][3] = torch.nan
    with pytest.raises(BeyondClsError, match=r"has NaN or Inf in norm\.weight; the file is damaged"):
        loaded("mae-s16", {"model": state}, tmp_path, depth=DEPTH)
