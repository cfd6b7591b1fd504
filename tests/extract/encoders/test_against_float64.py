"""Statistics, maps and tokens of a ViT at 224 pixels against a float64 computation that shares no code with `extract`."""

import copy

import numpy as np
import pytest
import timm
import torch
from torch import nn

from extract.encoders import Encoded, Encoder
from tests.extract.tiny import sharpen

BLOCKS, HEADS, PATCHES, B = 12, 3, 196, 2


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0).eval()
    sharpen(vit, 4)
    return vit


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(B, 3, 224, 224, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def encoded(model: nn.Module, images: torch.Tensor) -> Encoded:
    encoder = Encoder("vit", copy.deepcopy(model), {})
    return encoder(images, range(BLOCKS), encoder.statistics, maps=range(BLOCKS))


@pytest.fixture(scope="module")
def attention(model: nn.Module, images: torch.Tensor) -> np.ndarray:
    """[L, B, H, N, N] in float64: softmax(q k^T / sqrt(d)), from what `qkv` puts out."""
    exact, caught = copy.deepcopy(model).double(), []
    for block in exact.blocks:
        block.attn.qkv.register_forward_hook(lambda _module, _input, out: caught.append(out.numpy()))
    with torch.inference_mode():
        exact(images.double())
    maps = []
    for qkv in caught:  # [B, N, 3 * H * d]
        n = qkv.shape[1]
        q, k, _ = qkv.reshape(B, n, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)  # each [B, H, N, d]
        logits = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        exponentials = np.exp(logits - logits.max(-1, keepdims=True))
        maps.append(exponentials / exponentials.sum(-1, keepdims=True))
    return np.stack(maps)


def entropy(row: np.ndarray) -> float:
    """Eq. 5, by hand: a row over the patches alone, renormalised, natural logarithm."""
    p = row / row.sum()
    return -sum(x * np.log(x) for x in p.tolist() if x > 0)


# Of those that the paper has and their relatives; one that is added brings its own.
BY_HAND = (
    "cls_self",
    "cls_patch_entropy",
    "patch_self",
    "patch_patch_entropy",
    "cls_self_adjusted",
    "patch_self_raw",
    "cls_to_patches",
    "patches_to_cls",
)


def expected_statistic(name: str, a: np.ndarray) -> float:
    """Of one attention map [N, N]; token 0 is [cls]."""
    if name == "cls_self":
        return a[0, 0]
    if name == "cls_patch_entropy":
        return entropy(a[0, 1:])
    if name == "patch_self":
        return sum(a[i, i] / sum(a[i, 1:].tolist()) for i in range(1, 1 + PATCHES)) / PATCHES
    if name == "patch_patch_entropy":
        return sum(entropy(a[i, 1:]) for i in range(1, 1 + PATCHES)) / PATCHES
    if name == "cls_self_adjusted":
        return a[0, 0] / sum(a[0, 1:].tolist())
    if name == "patch_self_raw":
        return sum(a[i, i] for i in range(1, 1 + PATCHES)) / PATCHES
    if name == "cls_to_patches":
        return sum(a[0, 1:].tolist()) / PATCHES
    assert name == "patches_to_cls"
    return sum(a[1:, 0].tolist()) / PATCHES


def test_attention_is_far_from_uniform(attention: np.ndarray) -> None:
    """Else every statistic would agree with anything."""
    assert attention.shape == (BLOCKS, B, HEADS, 1 + PATCHES, 1 + PATCHES)
    mean_entropy = -(attention * np.log(attention)).sum(-1).mean((1, 2, 3))  # [L]
    assert (mean_entropy < np.log(1 + PATCHES) - 0.5).all(), mean_entropy
    assert attention.max() > 0.3


@pytest.mark.parametrize("name", BY_HAND)
def test_statistics(name: str, encoded: Encoded, attention: np.ndarray) -> None:
    expected = np.array(
        [[[expected_statistic(name, attention[b, i, h]) for h in range(HEADS)] for b in range(BLOCKS)] for i in range(B)]
    )
    given = encoded.statistics[name]
    assert given.shape == (B, BLOCKS, HEADS)
    assert given.dtype == torch.float32
    tolerance = 1e-7 if name == "cls_to_patches" else 1e-5  # it hardly differs between heads
    assert expected.std() > 10 * tolerance
    np.testing.assert_allclose(given.numpy(), expected, rtol=0, atol=tolerance)


def test_norm_ratios(model: nn.Module, images: torch.Tensor, encoded: Encoded) -> None:
    exact, caught = copy.deepcopy(model).double(), []
    for block in exact.blocks:
        block.register_forward_pre_hook(lambda _module, given: caught.append(given[0]))
        block.attn.register_forward_hook(lambda _module, _input, out: caught.append(out))
    with torch.inference_mode():
        exact(images.double())
    norms = np.stack([np.sqrt(x.numpy() ** 2 @ np.ones(x.shape[-1])) for x in caught])  # [2 L, B, N]
    ratio = (norms[1::2] / norms[::2]).swapaxes(0, 1)  # [B, L, N]
    np.testing.assert_allclose(encoded.statistics["cls_norm_ratio"].numpy(), ratio[:, :, 0], rtol=1e-5)
    np.testing.assert_allclose(encoded.statistics["patch_norm_ratio"].numpy(), ratio[:, :, 1:].mean(-1), rtol=1e-5)


def test_maps_are_rows_of_their_block(encoded: Encoded, attention: np.ndarray) -> None:
    centre = 7 * 14 + 7  # of 14 x 14 patches, right below the middle
    assert encoded.maps.keys() == {f"{row}/block{block}" for row in ("cls", "centre") for block in range(BLOCKS)}
    for block, rows in enumerate(attention):
        np.testing.assert_allclose(encoded.maps[f"cls/block{block}"].numpy(), rows[:, :, 0, 1:], rtol=0, atol=1e-5)
        np.testing.assert_allclose(encoded.maps[f"centre/block{block}"].numpy(), rows[:, :, 1 + centre, 1:], rtol=0, atol=1e-5)


def test_tokens_are_those_before_the_final_norm(model: nn.Module, images: torch.Tensor, encoded: Encoded) -> None:
    tokens = torch.cat([encoded.cls[11][:, None], encoded.patch[11]], 1)
    with torch.inference_mode():
        after = model.forward_features(images)
        torch.testing.assert_close(model.norm(tokens), after, rtol=0, atol=1e-5)
    assert (tokens - after).abs().max() > 0.1, "the norm does something, so the tokens are those before it"


def test_tokens_of_every_block(model: nn.Module, images: torch.Tensor, encoded: Encoded) -> None:
    exact = copy.deepcopy(model).double()
    with torch.inference_mode():
        outputs = exact.forward_intermediates(images.double(), norm=False, intermediates_only=True, output_fmt="NLC")
    for block, output in enumerate(outputs):
        np.testing.assert_allclose(encoded.patch[block].numpy(), output.numpy(), rtol=1e-4, atol=1e-4)
