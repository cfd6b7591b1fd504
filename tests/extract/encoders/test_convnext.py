"""ConvNeXt: official checkpoints; feature maps become tokens, and there is no attention."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from extract.encoders import ENCODERS, load_encoder
from store import BeyondClsError
from tests.extract.encoders.official import assert_equal, double, loaded, random_state, shapes_of
from tests.extract.encoders.reference import Reference, State, gelu, layer_norm, linear, patches_of

WIDTHS = {"t": (96, 192, 384, 768), "b": (128, 256, 512, 1024)}
DEPTHS = {"t": (3, 3, 9, 3), "b": (3, 3, 27, 3)}
SHALLOW = (1, 2, 1, 1)  # of those in which every value is compared


def official_shapes(widths: Sequence[int], depths: Sequence[int]) -> dict[str, Sequence[int]]:
    shapes: dict[str, Sequence[int]] = {
        "downsample_layers.0.0.weight": (widths[0], 3, 4, 4),
        "downsample_layers.0.0.bias": (widths[0],),
        "downsample_layers.0.1.weight": (widths[0],),
        "downsample_layers.0.1.bias": (widths[0],),
        "norm.weight": (widths[-1],),
        "norm.bias": (widths[-1],),
        "head.weight": (1000, widths[-1]),
        "head.bias": (1000,),
    }
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            shapes |= dict.fromkeys(
                (f"downsample_layers.{stage}.0.{part}" for part in ("weight", "bias")), (widths[stage - 1],)
            )
            shapes[f"downsample_layers.{stage}.1.weight"] = (width, widths[stage - 1], 2, 2)
            shapes[f"downsample_layers.{stage}.1.bias"] = (width,)
        for i in range(depth):
            block = f"stages.{stage}.{i}"
            shapes[f"{block}.dwconv.weight"] = (width, 1, 7, 7)
            shapes[f"{block}.pwconv1.weight"] = (4 * width, width)
            shapes[f"{block}.pwconv1.bias"] = (4 * width,)
            shapes[f"{block}.pwconv2.weight"] = (width, 4 * width)
            for name in ("gamma", "dwconv.bias", "norm.weight", "norm.bias", "pwconv2.bias"):
                shapes[f"{block}.{name}"] = (width,)
    return shapes


def depthwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each channel of [B, h, w, D] with its own 7 x 7 weights, zeros around it: a sum of 49 shifted products."""
    h, w = x.shape[1:3]
    padded = torch.nn.functional.pad(x, (0, 0, 3, 3, 3, 3))
    shifted = (padded[:, i : i + h, j : j + w] * weight[:, 0, i, j] for i in range(7) for j in range(7))
    return sum(shifted, torch.zeros_like(x)) + bias


def reference(state: State, images: Tensor) -> Reference:
    out = Reference()
    maps = images  # [B, D, h, w]
    for stage in range(4):
        down = f"downsample_layers.{stage}"
        if stage:  # the norm comes first
            normed = layer_norm(state, f"{down}.0", maps.permute(0, 2, 3, 1))
            weight, bias = state[f"{down}.1.weight"], state[f"{down}.1.bias"]
            x = patches_of(normed.permute(0, 3, 1, 2), weight, bias)
        else:
            x = layer_norm(state, f"{down}.1", patches_of(images, state[f"{down}.0.weight"], state[f"{down}.0.bias"]))
        side = maps.shape[-1] // (2 if stage else 4)
        x, i = x.unflatten(1, (side, side)), 0  # [B, h, w, D]
        while f"stages.{stage}.{i}.gamma" in state:
            block = f"stages.{stage}.{i}"
            mixed = depthwise(x, state[f"{block}.dwconv.weight"], state[f"{block}.dwconv.bias"])
            hidden = gelu(linear(state, f"{block}.pwconv1", layer_norm(state, f"{block}.norm", mixed)))
            x, i = x + state[f"{block}.gamma"] * linear(state, f"{block}.pwconv2", hidden), i + 1
        out.tokens.append(x.flatten(1, 2))
        maps = x.permute(0, 3, 1, 2)
    return out


def shallow(size: str = "t") -> dict[str, Tensor]:
    return random_state(official_shapes(WIDTHS[size], SHALLOW))


def image(size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", WIDTHS)
def test_names_and_shapes_at_full_size(size: str) -> None:
    with torch.device("meta"):
        shapes = official_shapes(WIDTHS[size], DEPTHS[size])
        state = {name: torch.empty(tuple(shape)) for name, shape in shapes.items()}
    converted = {name: tuple(v.shape) for name, v in ENCODERS[f"convnext-{size}"].convert({"model": state}).items()}
    assert converted.pop("head.weight") == (1000, WIDTHS[size][-1])
    assert converted.pop("head.bias") == (1000,)
    assert converted == shapes_of(f"convnext-{size}")


@pytest.mark.parametrize("size", WIDTHS)
def test_equals_plain_torch(size: str, tmp_path: Path) -> None:
    state = shallow(size)
    encoder = loaded(f"convnext-{size}", {"model": state}, tmp_path, depths=SHALLOW)
    assert_equal(encoder, image(), reference(double(state), image().double()))


def test_has_patches_and_nothing_else(tmp_path: Path) -> None:
    encoder = loaded("convnext-t", {"model": shallow()}, tmp_path, depths=SHALLOW)
    assert (encoder.layout.has_cls, encoder.layout.n_prefix, encoder.n_blocks, encoder.block) == (False, 0, 4, 3)
    assert encoder.statistics == ()
    assert encoder.norm() == ({}, None)
    encoded = encoder(torch.zeros(1, 3, 224, 224), range(4))
    assert [tuple(encoded.patch[block].shape[1:]) for block in range(4)] == [(56**2, 96), (28**2, 192), (14**2, 384), (49, 768)]
    assert encoded.cls == encoded.registers == {}
    assert {module.eps for module in encoder.model.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}


def test_no_tensor_has_two_names(tmp_path: Path) -> None:
    model = loaded("convnext-t", {"model": shallow()}, tmp_path, depths=SHALLOW).model
    assert not any(name.startswith("blocks.") for name in model.state_dict())


def test_layout_of_timm(tmp_path: Path) -> None:
    """The hub's files have its names, and the classifier."""
    encoder = loaded("convnext-t", {"model": shallow()}, tmp_path, depths=SHALLOW)
    head = random_state({"head.fc.weight": (1000, 768), "head.fc.bias": (1000,)})
    again = loaded("convnext-t", {**encoder.model.state_dict(), **head}, tmp_path, depths=SHALLOW)
    assert again.weights == encoder.weights


def test_another_version_is_refused(tmp_path: Path) -> None:
    """ConvNeXt V2 has a normalisation of responses in place of LayerScale."""
    state = shallow()
    second = {name: value for name, value in state.items() if not name.endswith("gamma")}
    second |= random_state({"stages.0.0.grn.gamma": (1, 1, 1, 384), "stages.0.0.grn.beta": (1, 1, 1, 384)})
    with pytest.raises(
        BeyondClsError, match=r"missing: stages\.0\.blocks\.0\.gamma, .*; unexpected: stages\.0\.blocks\.0\.grn\.beta"
    ):
        loaded("convnext-t", {"model": second}, tmp_path, depths=SHALLOW)


@pytest.mark.parametrize("hub", [False, True])
def test_any_name_of_timm(hub: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **arguments: create(name, **arguments))
    encoder = load_encoder("convnext_atto.d2_in1k", random_seed=None if hub else 0)
    assert not encoder.attends
    assert encoder(torch.zeros(1, 3, 64, 64), [3]).patch[3].shape == (1, 4, 320)
