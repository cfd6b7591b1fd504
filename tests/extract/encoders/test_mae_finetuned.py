"""Fine-tuned MAE: classifiers on the average of the tokens and on [cls]."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch

from extract.encoders import load_encoder
from extract.encoders.pretrained import cls_caution, timm_model
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

SIZES = {"s16": (384, 12, 6, 16), "b16": (768, 12, 12, 16), "l16": (1024, 24, 16, 16), "h14": (1280, 32, 16, 14)}
DEPTH = 2


def official(width: int, depth: int = DEPTH, patch: int = 16, pool: str = "avg") -> Shapes:
    """With average pooling, `fc_norm` behind it in place of `norm` in front of it."""
    shapes = dict(vit_shapes(width, depth, patch, 1 + (224 // patch) ** 2))
    if pool == "avg":
        shapes |= {f"fc_norm.{part}": shapes.pop(f"norm.{part}") for part in ("weight", "bias")}
    return {**shapes, "head.weight": (1000, width), "head.bias": (1000,)}


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    width, depth, heads, patch = SIZES[size]
    assert_fits(f"mae-ft-{size}", {"model": empty_state(official(width, depth, patch))})
    assert heads_of(f"mae-ft-{size}") == heads


@pytest.mark.parametrize("pool", ["avg", "cls"])
@pytest.mark.parametrize("size", ["s16", "b16"])
def test_equals_plain_torch(size: str, pool: str, tmp_path: Path) -> None:
    width, _, heads, _ = SIZES[size]
    state, images = random_state(official(width, pool=pool)), random_images()
    encoder = loaded(f"mae-ft-{size}", {"model": state, "args": Namespace(global_pool=pool == "avg")}, tmp_path, depth=DEPTH)
    assert_equal(encoder, images, vit(double(state), images.double(), heads))


def test_norm_is_the_one_in_front_of_pooling(tmp_path: Path) -> None:
    averaged, cls = (random_state(official(384, pool=pool)) for pool in ("avg", "cls"))
    assert loaded("mae-ft-s16", {"model": averaged}, tmp_path, depth=DEPTH).norm() == ({}, None)
    encoder = loaded("mae-ft-s16", {"model": cls}, tmp_path, depth=DEPTH)
    norm, eps = encoder.norm()
    assert torch.equal(norm["weight"], cls["norm.weight"])
    assert torch.equal(norm["bias"], cls["norm.bias"])
    assert eps == 1e-6
    assert '"global_pool": "token"' in encoder.architecture


def test_cls_of_a_model_that_was_fine_tuned_through_the_average(tmp_path: Path) -> None:
    averaged, cls = (random_state(official(384, 1, pool=pool)) for pool in ("avg", "cls"))
    caution = loaded("mae-ft-s16", {"model": averaged}, tmp_path, depth=1).cls_caution
    assert caution.startswith("fine-tuned through the average of its patch tokens, not through [cls]")
    assert loaded("mae-ft-s16", {"model": cls}, tmp_path, depth=1).cls_caution == ""
    assert load_encoder("mae-ft-s16", random_seed=0, arguments={"depth": 1}).cls_caution == "", "it was not trained at all"


def test_nothing_is_said_of_cls_where_there_is_none() -> None:
    tiny = {"embed_dim": 32, "depth": 1, "num_heads": 2, "global_pool": "avg", "fc_norm": True}
    with_cls, without = (timm_model("vit_tiny_patch16_224", class_token=has, **tiny) for has in (True, False))
    assert cls_caution(with_cls)
    assert cls_caution(without) == ""


def test_both_norms_are_none_of_the_two(tmp_path: Path) -> None:
    state = random_state({**official(384), "norm.weight": (384,), "norm.bias": (384,)})
    with pytest.raises(BeyondClsError, match=r"another architecture\. unexpected: norm\.bias, norm\.weight$"):
        loaded("mae-ft-s16", {"model": state}, tmp_path, depth=DEPTH)


def test_not_fine_tuned(tmp_path: Path) -> None:
    """The file before fine-tuning fits the architecture of the one on [cls]."""
    with pytest.raises(BeyondClsError, match=r"neither `head\.weight` nor `fc_norm\.weight`: it is of MAE before fine-tuning"):
        loaded("mae-ft-s16", {"model": random_state(vit_shapes(384, DEPTH, 16, 197))}, tmp_path, depth=DEPTH)


def test_no_small_one_is_published() -> None:
    with pytest.raises(
        BeyondClsError, match=r"get them from https://.*FINETUNE\.md \(how to train them\) and give --checkpoint"
    ):
        load_encoder("mae-ft-s16")
