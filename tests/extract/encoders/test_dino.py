"""DINO: files with the backbone only, and full checkpoints."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extract.encoders import load_encoder
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

SIZES = {"s16": (384, 6, 16), "s8": (384, 6, 8), "b16": (768, 12, 16), "b8": (768, 12, 8)}
DEPTH = 2
HEAD = {  # of the small model's projection
    "mlp.0.weight": (2048, 384),
    "mlp.0.bias": (2048,),
    "last_layer.weight_g": (64, 1),
    "last_layer.weight_v": (64, 256),
}


def official(width: int, patch: int = 16, seed: int = 0) -> dict[str, torch.Tensor]:
    return random_state(vit_shapes(width, DEPTH, patch, 1 + (224 // patch) ** 2), seed)


def full_checkpoint(student: dict[str, torch.Tensor], teacher: dict[str, torch.Tensor], module: str = "") -> dict[str, Any]:
    """As the training script writes it; its schedules are arrays, so learning rates are numbers of numpy."""
    head = random_state({f"head.{name}": shape for name, shape in HEAD.items()})
    return {
        "student": {f"module.{name}": x for name, x in {**wrapped(student), **head}.items()},
        "teacher": {f"{module}{name}": x for name, x in {**wrapped(teacher), **head}.items()},
        "optimizer": {"state": {}, "param_groups": [{"lr": np.float64(1e-4), "weight_decay": np.float32(0.4), "params": [0]}]},
        "epoch": 100,
        "args": Namespace(arch="deit_small", patch_size=16),
        "dino_loss": {"center": torch.zeros(1, 64)},
    }


def wrapped(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"backbone.{name}": x for name, x in state.items()}


class OfAnyKind:
    """Pickled as a number of numpy whose type is `object`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.float64(1).__reduce__()[0], (np.dtype("O"), b"8 bytes.")


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    width, heads, patch = SIZES[size]
    assert_fits(f"dino-{size}", empty_state(vit_shapes(width, 12, patch, 1 + (224 // patch) ** 2)))
    assert heads_of(f"dino-{size}") == heads


@pytest.mark.parametrize("size", ["s16", "s8", "b16"])
def test_equals_plain_torch(size: str, tmp_path: Path) -> None:
    width, heads, patch = SIZES[size]
    state, images = official(width, patch), random_images()
    encoder = loaded(f"dino-{size}", state, tmp_path, depth=DEPTH)
    assert_equal(encoder, images, vit(double(state), images.double(), heads))


@pytest.mark.parametrize("module", ["", "module."], ids=["plain", "parallel"])
def test_teacher_of_a_full_checkpoint(module: str, tmp_path: Path) -> None:
    student, teacher = official(384, seed=1), official(384, seed=2)
    encoder = loaded("dino-s16", full_checkpoint(student, teacher, module), tmp_path, depth=DEPTH)
    assert encoder.weights == loaded("dino-s16", teacher, tmp_path, depth=DEPTH).weights
    assert encoder.weights != loaded("dino-s16", student, tmp_path, depth=DEPTH).weights


def test_numbers_of_an_older_numpy(tmp_path: Path) -> None:
    """Its files name them by another module."""
    teacher = official(384)
    torch.save(full_checkpoint(teacher, teacher), tmp_path / "new.pth", _use_new_zipfile_serialization=False)
    content = (tmp_path / "new.pth").read_bytes()
    assert b"cnumpy._core.multiarray\nscalar" in content
    (tmp_path / "old.pth").write_bytes(content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    new, old = (
        load_encoder("dino-s16", checkpoint=tmp_path / f"{age}.pth", arguments={"depth": DEPTH}) for age in ("new", "old")
    )
    assert old.weights == new.weights


def test_numbers_of_numpy_are_no_objects(tmp_path: Path) -> None:
    """A number of numpy may be any object, whose unpickling would run its code."""
    content = full_checkpoint(official(384), official(384))
    content["optimizer"]["param_groups"][0]["lr"] = OfAnyKind()
    with pytest.raises(BeyondClsError, match=r"holds more than tensors, a \S*ObjectDType, and is not loaded"):
        loaded("dino-s16", content, tmp_path, depth=DEPTH)


def test_no_teacher(tmp_path: Path) -> None:
    content = full_checkpoint(official(384), official(384))
    del content["teacher"]
    with pytest.raises(BeyondClsError, match=r"no dictionary of tensors at the top, in 'teacher'; it holds student, optimizer"):
        loaded("dino-s16", content, tmp_path, depth=DEPTH)


def test_full_checkpoint_of_ibot(tmp_path: Path) -> None:
    content = full_checkpoint(official(384), official(384))
    content["ibot_loss"] = content.pop("dino_loss")
    with pytest.raises(BeyondClsError, match=r"it holds `ibot_loss`, which iBOT writes and DINO does not; load it as ibot-s16"):
        loaded("dino-s16", content, tmp_path, depth=DEPTH)


def test_of_another_patch_size(tmp_path: Path) -> None:
    message = r"other shape: patch_embed\.proj\.weight \[384, 3, 8, 8\] for \[384, 3, 16, 16\], pos_embed \[1, 785, 384\] for"
    with pytest.raises(BeyondClsError, match=message):
        loaded("dino-s16", official(384, patch=8), tmp_path, depth=DEPTH)
