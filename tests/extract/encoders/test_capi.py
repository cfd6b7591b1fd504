"""CAPI: official checkpoints; registers around the image, rotation by position, no [cls]."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.capi import initial_frequencies
from store import BeyondClsError
from tests.extract.encoders.official import assert_equal, double, loaded, random_images, random_state, shapes_of
from tests.extract.encoders.reference import Reference, State, attend, gelu, heads_of, linear, patches_of

WIDTH, HEADS, DEPTH, GRID, REGISTERS = 1024, 16, 2, 16, 16


def block_shapes(prefix: str) -> dict[str, Sequence[int]]:
    shapes: dict[str, Sequence[int]] = {
        "residual1.norm.weight": (WIDTH,),
        "residual1.fn.rope.freqs": (2, WIDTH // HEADS),
        "residual2.norm.weight": (WIDTH,),
        "residual2.fn.fc1.weight": (4 * WIDTH, WIDTH),
        "residual2.fn.fc2.weight": (WIDTH, 4 * WIDTH),
    }
    for name in ("q_proj", "k_proj", "v_proj", "proj"):
        shapes[f"residual1.fn.{name}.weight"] = (WIDTH, WIDTH)
    return {prefix + name: shape for name, shape in shapes.items()}


def encoder_shapes(depth: int) -> dict[str, Sequence[int]]:
    shapes: dict[str, Sequence[int]] = {
        "registers": (1, REGISTERS, WIDTH),
        "patch_embed.weight": (WIDTH, 3, 14, 14),
        "patch_embed.bias": (WIDTH,),
    }
    for i in range(depth):
        shapes |= block_shapes(f"encoder.blocks.{i}.")
    return shapes


def official(depth: int = DEPTH) -> dict[str, Tensor]:
    """Frequencies are random, too, and no two of a block are alike."""
    state = random_state(encoder_shapes(depth))
    state |= {name: 9 * value for name, value in state.items() if name.endswith("freqs")}
    return {f"backbone.{name}": value for name, value in state.items()}


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def positions() -> Tensor:
    """Row and column of 16 registers and 16 x 16 patches."""
    quarter = [step / 4 for step in range(4)]
    around = [(q, 0.0) for q in quarter] + [(1.0, q) for q in quarter]
    around += [(1 - q, 1.0) for q in quarter] + [(0.0, 1 - q) for q in quarter]
    inside = [(row / (GRID - 1), column / (GRID - 1)) for row in range(GRID) for column in range(GRID)]
    return torch.tensor(around + inside, dtype=torch.float64)


def rotated(x: Tensor, freqs: Tensor) -> Tensor:
    """[B, H, N, d], channel by channel: x_i cos θ_i ∓ x_j sin θ_i, j its partner half the channels away."""
    half = x.shape[-1] // 2
    out = torch.empty_like(x)
    for i in range(2 * half):
        angle = positions()[:, 0] * freqs[0, i] + positions()[:, 1] * freqs[1, i]  # [N]
        partner = -x[..., i + half] if i < half else x[..., i - half]
        out[..., i] = x[..., i] * angle.cos() + partner * angle.sin()
    return out


def reference(state: State, images: Tensor) -> Reference:
    state = {name.removeprefix("backbone."): value for name, value in state.items()}
    patches = patches_of(images, state["patch_embed.weight"], state["patch_embed.bias"])
    x, out = torch.cat([state["registers"].expand(len(images), -1, -1), patches], 1), Reference()
    while f"encoder.blocks.{len(out.tokens)}.residual1.norm.weight" in state:
        name = f"encoder.blocks.{len(out.tokens)}"
        freqs, normed = state[f"{name}.residual1.fn.rope.freqs"], rms_norm(x, state[f"{name}.residual1.norm.weight"])
        q, k, v = (heads_of(linear(state, f"{name}.residual1.fn.{part}_proj", normed), HEADS) for part in "qkv")
        mixed, attention = attend(rotated(q, freqs), rotated(k, freqs), v)
        x = x + linear(state, f"{name}.residual1.fn.proj", mixed)
        hidden = gelu(linear(state, f"{name}.residual2.fn.fc1", rms_norm(x, state[f"{name}.residual2.norm.weight"])))
        x = x + linear(state, f"{name}.residual2.fn.fc2", hidden)
        out.tokens.append(x)
        out.attention.append(attention)
    return out


def test_names_and_shapes_at_full_size() -> None:
    """Ours differ from the official ones in the names of a block's parts."""
    ours, theirs = shapes_of("capi-l14"), encoder_shapes(24)
    assert len(ours) == len(theirs)
    assert sum(map(math.prod, ours.values())) == sum(map(math.prod, theirs.values()))
    assert {name for name in ours if not name.startswith("blocks.")} == {"registers", "patch_embed.weight", "patch_embed.bias"}
    with torch.device("meta"):
        state = {f"backbone.{name}": torch.empty(tuple(shape)) for name, shape in theirs.items()}
    converted = ENCODERS["capi-l14"].convert(state)
    assert {name: tuple(value.shape) for name, value in converted.items()} == ours


def test_equals_plain_torch(tmp_path: Path) -> None:
    state, images = official(), random_images()
    encoder = loaded("capi-l14", state, tmp_path, depth=DEPTH)
    assert_equal(encoder, images, reference(double(state), images.double()))


def test_layout(tmp_path: Path) -> None:
    encoder = loaded("capi-l14", official(1), tmp_path, depth=1)
    assert (encoder.layout.has_cls, encoder.layout.n_prefix, encoder.layout.n_registers) == (False, 16, 16)
    assert "patch_self" in encoder.statistics
    assert not any("cls" in name for name in encoder.statistics)
    encoded = encoder(torch.zeros(2, 3, 224, 224), [0])
    assert encoded.patch[0].shape == (2, 256, WIDTH)
    assert encoded.registers[0].shape == (2, 16, WIDTH)
    assert {module.eps for module in encoder.model.modules() if isinstance(module, nn.RMSNorm)} == {1e-5}


def test_predictor_and_clusters_are_dropped(tmp_path: Path) -> None:
    state = official(1)
    rest = {"backbone.mask_token": (1, WIDTH), "head.last_layer.weight_v": (8, WIDTH), "head.last_layer.weight_g": (8, 1)}
    whole = state | random_state({**rest, **block_shapes("backbone.decoder.blocks.0.")})
    assert loaded("capi-l14", whole, tmp_path, depth=1).weights == loaded("capi-l14", state, tmp_path, depth=1).weights


def test_frequencies_at_the_start() -> None:
    """7 to 0.0007 turns per image side; rows turn the first half of channels, columns the second."""
    frequencies = initial_frequencies(64)
    turns = frequencies / (2 * math.pi)
    torch.testing.assert_close(turns[0, :16].log10().diff(), torch.full((15,), -4 / 15))
    assert turns[0, 0].item() == pytest.approx(7)
    assert torch.equal(turns[0, :16], turns[0, 16:32])
    assert torch.equal(turns[0, :32], turns[1, 32:])
    assert not turns[0, 32:].any()
    assert not turns[1, :32].any()


def test_another_image_size() -> None:
    """Positions are fractions of the image: there is nothing to interpolate."""
    small = {"img_size": 56, "depth": 1, "dim": 32, "n_heads": 2}
    encoder = load_encoder("capi-l14", random_seed=0, arguments=small)
    assert encoder.described_transform["input_size"] == [3, 56, 56]
    assert encoder(torch.zeros(1, 3, 56, 56), [0], encoder.statistics).patch[0].shape == (1, 16, 32)


def test_a_vit_with_cls_is_refused(tmp_path: Path) -> None:
    state = official(1)
    state["backbone.cls_token"] = state.pop("backbone.registers")[:, :1]
    with pytest.raises(BeyondClsError, match=r"missing: registers; unexpected: cls_token$"):
        loaded("capi-l14", state, tmp_path, depth=1)


def test_published_for_four_sets_of_images() -> None:
    files = {ENCODERS[name].weights.rsplit("/", 1)[-1] for name in ENCODERS if name.startswith("capi-")}
    assert files == {f"capi_vitl14_{images}.pth" for images in ("in1k", "i22k", "lvd", "p205")}
