"""BEiT v2: the official checkpoints of self-supervised pretraining."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from store import BeyondClsError
from tests.extract.encoders.beit import SHARED, beit_reference, beit_shapes, block_shapes, with_indices
from tests.extract.encoders.official import assert_equal, double, loaded, random_images, random_state, shapes_of

SIZES = {"b16": (768, 12, 12), "l16": (1024, 24, 16)}
DEPTH = 2


def official(width: int, heads: int, depth: int = DEPTH, *, shared: bool = True) -> dict[str, Tensor]:
    return with_indices(random_state(beit_shapes(width, depth, heads, shared=shared)))


def prediction(width: int) -> dict[str, Tensor]:
    """What pretraining has and the encoder has not (with fewer visual words)."""
    shapes: dict[str, Sequence[int]] = {"mask_token": (1, 1, width), "lm_head.weight": (8, width), "lm_head.bias": (8,)}
    return random_state(shapes | block_shapes("cls_pt_layers.0.", width) | block_shapes("cls_pt_layers.1.", width), seed=1)


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    assert shapes_of(f"beitv2-{size}") == beit_shapes(*SIZES[size], shared=False)


@pytest.mark.parametrize(("size", "shared"), [("b16", True), ("l16", True), ("b16", False)])
def test_equals_plain_torch(size: str, shared: bool, tmp_path: Path) -> None:
    width, _, heads = SIZES[size]
    state = official(width, heads, shared=shared)
    encoder = loaded(f"beitv2-{size}", {"model": state}, tmp_path, depth=DEPTH)
    assert_equal(encoder, random_images(), beit_reference(double(state), random_images().double(), heads))


def test_what_predicts_words_is_dropped(tmp_path: Path) -> None:
    """As the training script writes it, and as DeepSpeed does."""
    state = official(768, 12, 1)
    alone = loaded("beitv2-b16", {"model": state}, tmp_path, depth=1)
    whole = {"model": state | prediction(768), "optimizer": {"lr": 0.1}, "args": Namespace(early_layers=9), "epoch": 1599}
    assert loaded("beitv2-b16", whole, tmp_path, depth=1).weights == alone.weights
    assert loaded("beitv2-b16", {"module": whole["model"]}, tmp_path, depth=1).weights == alone.weights


def test_norm(tmp_path: Path) -> None:
    state = official(768, 12, 1)
    encoder = loaded("beitv2-b16", {"model": state}, tmp_path, depth=1)
    weights, _ = encoder.norm()
    assert torch.equal(weights["bias"], state["norm.bias"])
    assert {module.eps for module in encoder.model.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}


def test_a_fine_tuned_model_is_refused(tmp_path: Path) -> None:
    """Its layout is nearly the same; its norm stands behind pooling, and it has seen labels."""
    state = official(768, 12, 1, shared=False)
    tuned = {f"fc_{name}" if name.startswith("norm.") else name: value for name, value in state.items()}
    tuned |= random_state({"head.weight": (1000, 768), "head.bias": (1000,)})
    with pytest.raises(BeyondClsError, match=r"it has a classifier \(head\.weight, head\.bias\), so it was trained on labels"):
        loaded("beitv2-b16", {"model": tuned}, tmp_path, depth=1)


def test_the_first_beit_is_refused(tmp_path: Path) -> None:
    first = official(768, 12, 1) | random_state({"mask_token": (1, 1, 768), "lm_head.weight": (8, 768), "lm_head.bias": (8,)})
    with pytest.raises(BeyondClsError, match=r"`lm_head\.\*` without `cls_pt_layers\.\*`, so it is of the first BEiT"):
        loaded("beitv2-b16", {"model": first}, tmp_path, depth=1)


def test_positions_of_another_resolution(tmp_path: Path) -> None:
    """Tables would have to be interpolated, which is another encoder."""
    state = {name: value for name, value in official(768, 12, 1).items() if "relative" not in name}
    state[SHARED] = torch.zeros((2 * 24 - 1) ** 2 + 3, 12)
    with pytest.raises(
        BeyondClsError, match=r"other shape: blocks\.0\.attn\.relative_position_bias_table \[2212, 12\] for \[732, 12"
    ):
        loaded("beitv2-b16", {"model": state}, tmp_path, depth=1)
