"""iBOT: the teacher's backbone, from a file of its own or from a full checkpoint."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from store import BeyondClsError
from tests.extract.encoders.official import (
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

SIZES = {"s16": (384, 12, 6), "b16": (768, 12, 12), "l16": (1024, 24, 16)}
DEPTH = 2


def official(width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    return random_state(vit_shapes(width, DEPTH, 16, 197), seed)


def full_checkpoint(student: dict[str, torch.Tensor], teacher: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Students stand in for masked patches; both have a head for [cls] and patches."""
    head = random_state(
        {"head.mlp.0.weight": (64, 384), "head.last_layer.weight_g": (64, 1), "head.last_layer2.weight_g": (64, 1)}
    )
    masked = {"backbone.masked_embed": torch.ones(1, 384)}
    return {
        "student": {f"module.{name}": x for name, x in {**wrapped(student), **masked, **head}.items()},
        "teacher": {**wrapped(teacher), **head},
        "optimizer": {"state": {}, "param_groups": [{"lr": np.float64(1e-4)}]},
        "epoch": 800,
        "args": Namespace(arch="vit_small"),
        "ibot_loss": {"center": torch.zeros(1, 64), "center2": torch.zeros(1, 1, 64)},
    }


def wrapped(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"backbone.{name}": x for name, x in state.items()}


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    width, depth, heads = SIZES[size]
    assert_fits(f"ibot-{size}", {"state_dict": empty_state(vit_shapes(width, depth, 16, 197))})
    assert heads_of(f"ibot-{size}") == heads


@pytest.mark.parametrize("size", ["s16", "b16"])
def test_equals_plain_torch(size: str, tmp_path: Path) -> None:
    width, _, heads = SIZES[size]
    state, images = official(width), random_images()
    encoder = loaded(f"ibot-{size}", {"state_dict": state}, tmp_path, depth=DEPTH)
    assert_equal(encoder, images, vit(double(state), images.double(), heads))


def test_teacher_of_a_full_checkpoint(tmp_path: Path) -> None:
    student, teacher = official(384, seed=1), official(384, seed=2)
    encoder = loaded("ibot-s16", full_checkpoint(student, teacher), tmp_path, depth=DEPTH)
    assert encoder.weights == loaded("ibot-s16", {"state_dict": teacher}, tmp_path, depth=DEPTH).weights


def test_backbone_of_a_student(tmp_path: Path) -> None:
    """The authors publish some, trained on ImageNet-22K, with what stands in for masked patches."""
    student = {"state_dict": {**official(384), "masked_embed": torch.ones(1, 384)}}
    with pytest.raises(BeyondClsError, match=r"`masked_embed`, so it is a student's backbone, .* give checkpoint_teacher\.pth"):
        loaded("ibot-s16", student, tmp_path, depth=DEPTH)


def test_full_checkpoint_of_dino(tmp_path: Path) -> None:
    content = full_checkpoint(official(384), official(384))
    content["dino_loss"] = content.pop("ibot_loss")
    with pytest.raises(BeyondClsError, match=r"it holds `dino_loss`, which DINO writes and iBOT does not; load it as dino-s16"):
        loaded("ibot-s16", content, tmp_path, depth=DEPTH)


def test_no_teacher(tmp_path: Path) -> None:
    content = full_checkpoint(official(384), official(384))
    del content["teacher"]
    message = r"no dictionary of tensors at the top, in 'teacher', in 'state_dict'; it holds student, "
    with pytest.raises(BeyondClsError, match=message):
        loaded("ibot-s16", content, tmp_path, depth=DEPTH)


def test_swin(tmp_path: Path) -> None:
    state = random_state({"patch_embed.proj.weight": (96, 3, 4, 4), "layers.0.blocks.0.norm1.weight": (96,)})
    with pytest.raises(
        BeyondClsError, match=r"missing: .*unexpected: layers\.0\.blocks\.0\.norm1\.weight; other shape: patch_"
    ):
        loaded("ibot-s16", {"state_dict": state}, tmp_path, depth=DEPTH)
