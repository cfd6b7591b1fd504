"""I-JEPA: the target encoder, never the other one; no [cls]."""

from pathlib import Path
from typing import Any

import pytest
import torch

from extract.encoders.ijepa import convert
from store import BeyondClsError
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

SIZES = {  # width, depth, heads, patch, side in pixels, hidden width of the MLP
    "h14": (1280, 32, 16, 14, 224, 5120),
    "h16-448": (1280, 32, 16, 16, 448, 5120),
    "g16": (1408, 40, 16, 16, 224, 6144),
}


def official(size: str, depth: int | None = None) -> Shapes:
    width, full_depth, _, patch, side, hidden = SIZES[size]
    depth = full_depth if depth is None else depth
    shapes = dict(vit_shapes(width, depth, patch, (side // patch) ** 2))
    del shapes["cls_token"]
    for i in range(depth):
        shapes |= {f"blocks.{i}.mlp.fc1.weight": (hidden, width), f"blocks.{i}.mlp.fc1.bias": (hidden,)}
        shapes[f"blocks.{i}.mlp.fc2.weight"] = (width, hidden)
    return shapes


def full_checkpoint(target: dict[str, torch.Tensor], context: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        "encoder": {f"module.{name}": x for name, x in context.items()},
        "predictor": {"module.mask_token": torch.zeros(1, 1, 384), "module.predictor_embed.bias": torch.zeros(384)},
        "target_encoder": {f"module.{name}": x for name, x in target.items()},
        "opt": {"state": {}, "param_groups": [{"lr": 1e-6}]},
        "scaler": None,
        "epoch": 300,
        "loss": 0.1,
        "batch_size": 128,
        "world_size": 16,
        "lr": 1e-3,
    }


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    state = empty_state(official(size))
    assert_fits(f"ijepa-{size}", full_checkpoint(state, state))
    assert heads_of(f"ijepa-{size}") == SIZES[size][2]


def test_equals_plain_torch(tmp_path: Path) -> None:
    state, images = random_state(official("h14", depth=2)), random_images()
    other = {name: -x for name, x in state.items()}
    encoder = loaded("ijepa-h14", full_checkpoint(state, other), tmp_path, depth=2)
    assert not encoder.layout.has_cls
    assert encoder.layout.n_prefix == 0
    assert_equal(encoder, images, vit(double(state), images.double(), 16))


def test_larger_images(tmp_path: Path) -> None:
    """At a tenth of the width."""
    width = 128
    state = random_state({**vit_shapes(width, 2, 16, 28**2)})
    del state["cls_token"]
    encoder = loaded("ijepa-h16-448", full_checkpoint(state, state), tmp_path, depth=2, embed_dim=width, num_heads=4)
    assert encoder.described_transform["input_size"] == [3, 448, 448]
    images = random_images(448)
    assert_equal(encoder, images, vit(double(state), images.double(), 4))


SMALL = {"target": {"module.norm.weight": torch.ones(3)}, "context": {"module.norm.weight": torch.zeros(3)}}


@pytest.mark.parametrize(
    "content",
    [{"encoder": SMALL["context"], "epoch": 3}, SMALL["target"], {"state_dict": SMALL["target"]}, {}],
    ids=["only the other", "bare", "of whom?", "nothing"],
)
def test_tensors_that_may_be_of_the_other_encoder(content: dict[str, Any]) -> None:
    with pytest.raises(BeyondClsError, match=r"has no `target_encoder`; it holds .*Give the full checkpoint, as `encoder`"):
        convert(content)


@pytest.mark.parametrize("broken", [None, {}, {"module.norm.weight": 3}], ids=str)
def test_target_encoder_without_tensors(broken: Any) -> None:
    """Nothing else is taken in its place."""
    with pytest.raises(BeyondClsError, match=r"no dictionary of tensors"):
        convert({"encoder": SMALL["context"], "target_encoder": broken})


def test_order_does_not_matter() -> None:
    content = {"encoder": SMALL["context"], "target_encoder": SMALL["target"]}
    for ordered in (content, dict(reversed(content.items()))):
        assert torch.equal(convert(ordered)["norm.weight"], torch.ones(3))
