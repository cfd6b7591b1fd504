"""MaskFeat: checkpoints as PySlowFast writes them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from store import BeyondClsError
from tests.extract.encoders.official import assert_equal, double, loaded, random_images, random_state, shapes_of, vit_shapes
from tests.extract.encoders.reference import Reference, State, patches_of, vit_blocks

SIZES = {"b16": (768, 12, 12), "l16": (1024, 24, 16)}
DEPTH = 2


def encoder_shapes(width: int, depth: int) -> dict[str, Sequence[int]]:
    """A plain ViT without a norm behind its blocks."""
    return {name: shape for name, shape in vit_shapes(width, depth, 16, 197).items() if not name.startswith("norm.")}


def official(width: int, depth: int = DEPTH) -> dict[str, Tensor]:
    prediction: dict[str, Sequence[int]] = {
        "mask_token": (1, 1, width),
        "hogs.0.weight_x": (3, 1, 3, 3),
        "hogs.0.weight_y": (3, 1, 3, 3),
        "pred_head.transforms.0.0.weight": (width,),
        "pred_head.transforms.0.0.bias": (width,),
        "pred_head.projections.0.weight": (108, width),  # 9 orientations in 2 x 2 cells of 3 channels
        "pred_head.projections.0.bias": (108,),
    }
    return random_state(encoder_shapes(width, depth) | prediction)


def reference(state: State, images: Tensor, heads: int) -> Reference:
    patches = patches_of(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"])
    x = torch.cat([state["cls_token"].expand(len(images), -1, -1), patches], 1) + state["pos_embed"]
    return vit_blocks(state, x, heads)


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    width, depth, _ = SIZES[size]
    assert shapes_of(f"maskfeat-{size}") == encoder_shapes(width, depth)


@pytest.mark.parametrize("size", SIZES)
def test_equals_plain_torch(size: str, tmp_path: Path) -> None:
    width, _, heads = SIZES[size]
    state, images = official(width), random_images()
    content = {"epoch": 1599, "model_state": state, "optimizer_state": {"state": {}}, "cfg": "TASK: ssl\n"}
    encoder = loaded(f"maskfeat-{size}", content, tmp_path, depth=DEPTH)
    assert_equal(encoder, images, reference(double(state), images.double(), heads))


def test_has_no_norm_behind_the_blocks(tmp_path: Path) -> None:
    encoder = loaded("maskfeat-b16", {"model_state": official(768, 1)}, tmp_path, depth=1)
    assert encoder.norm() == ({}, None)
    assert {module.eps for module in encoder.model.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}


def test_a_fine_tuned_model_is_refused(tmp_path: Path) -> None:
    """It has a norm behind pooling and a classifier; its predictions and masks are gone."""
    head = {"norm.weight": (768,), "norm.bias": (768,), "head.projection.weight": (10, 768), "head.projection.bias": (10,)}
    tuned = random_state({**encoder_shapes(768, 1), **head})
    message = r"another architecture\. unexpected: head\.projection\.bias, head\.projection\.weight, norm\.bias, norm\.weight$"
    with pytest.raises(BeyondClsError, match=message):
        loaded("maskfeat-b16", {"model_state": tuned}, tmp_path, depth=1)


def test_a_model_of_videos_is_refused(tmp_path: Path) -> None:
    """MaskFeat's MViTs of Kinetics are published beside its ViTs."""
    video = official(768, 1)
    video["patch_embed.proj.weight"] = torch.zeros(768, 3, 3, 7, 7)
    with pytest.raises(
        BeyondClsError, match=r"other shape: patch_embed\.proj\.weight \[768, 3, 3, 7, 7\] for \[768, 3, 16, 16\]"
    ):
        loaded("maskfeat-b16", {"model_state": video}, tmp_path, depth=1)
