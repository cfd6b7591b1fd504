"""DINOv3: rotary positions of rounded periods, masked biases, registers."""

import math
from pathlib import Path

import pytest
import torch

from extract.encoders import load_encoder
from store import BeyondClsError
from tests.extract.encoders.official import (
    Shapes,
    assert_equal,
    double,
    heads_of,
    loaded,
    random_images,
    random_state,
    shapes_of,
    vit_shapes,
)
from tests.extract.encoders.reference import Reference, State, patches_of, vit_blocks

SIZES = {"s16": (384, 12, 6), "b16": (768, 12, 12), "l16": (1024, 24, 16)}
DEPTH, REGISTERS = 2, 4
PERIODS = (100 ** (torch.arange(16) / 16)).bfloat16().float()  # heads are 64 wide; the published periods are rounded


def published_shapes(width: int, depth: int) -> Shapes:
    """But for masks and periods, which are not random."""
    shapes = dict(vit_shapes(width, depth, 16, 1))
    del shapes["pos_embed"]
    shapes |= {"storage_tokens": (1, REGISTERS, width), "mask_token": (1, width)}
    for i in range(depth):
        shapes |= {f"blocks.{i}.ls1.gamma": (width,), f"blocks.{i}.ls2.gamma": (width,)}
    return shapes


def official(width: int, kept: tuple[int, int, int] = (1, 0, 1)) -> dict[str, torch.Tensor]:
    """`kept`: whether biases of queries, keys and values pass their masks."""
    state = {**random_state(published_shapes(width, DEPTH)), "rope_embed.periods": PERIODS}
    mask = torch.tensor(kept).repeat_interleave(width).float()
    return {**state, **{f"blocks.{i}.attn.qkv.bias_mask": mask for i in range(DEPTH)}}


def rotated(x: torch.Tensor, periods: torch.Tensor) -> torch.Tensor:
    """[B, H, N, 64]: numbers i and i + 32 of a patch's query turn together; 16 angles by its row, 16 by its column."""
    centres = (torch.arange(14) + 0.5) / 14 * 2 - 1
    rows, columns = torch.meshgrid(centres.double(), centres.double(), indexing="ij")
    angles = [2 * math.pi * place.flatten()[:, None] / periods for place in (rows, columns)]
    angle = torch.cat(angles, 1)  # [T, 32]
    real, imaginary = x[:, :, 1 + REGISTERS :].chunk(2, -1)
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([x[:, :, : 1 + REGISTERS], torch.cat([turned.real, turned.imag], -1)], 2)


def reference(state: State, images: torch.Tensor, heads: int) -> Reference:
    masked = {name: x * state[f"{name}_mask"] for name, x in state.items() if name.endswith("qkv.bias")}
    patches = patches_of(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"])
    x = torch.cat([state["cls_token"], state["storage_tokens"], patches], 1)
    return vit_blocks({**state, **masked}, x, heads, eps=1e-5, rotate=lambda q: rotated(q, state["rope_embed.periods"]))


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    width, depth, heads = SIZES[size]
    shapes = dict(published_shapes(width, depth))
    expected = {"reg_token": shapes.pop("storage_tokens"), "rope.periods": (16,)}
    del shapes["mask_token"]
    for name, shape in shapes.items():
        if name.endswith("qkv.bias"):
            expected |= {name.replace("qkv.bias", "q_bias"): (width,), name.replace("qkv.bias", "v_bias"): (width,)}
        else:
            expected[name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2")] = shape
    assert shapes_of(f"dinov3-{size}") == expected
    assert heads_of(f"dinov3-{size}") == heads


@pytest.mark.parametrize(("size", "kept"), [("s16", (1, 0, 1)), ("b16", (0, 0, 0)), ("s16", (0, 0, 1))])
def test_equals_plain_torch(size: str, kept: tuple[int, int, int], tmp_path: Path) -> None:
    width, _, heads = SIZES[size]
    state, images = official(width, kept), random_images()
    encoder = loaded(f"dinov3-{size}", state, tmp_path, depth=DEPTH)
    assert encoder.layout.n_registers == REGISTERS
    assert_equal(encoder, images, reference(double(state), images.double(), heads))


def test_periods_are_those_of_the_file(tmp_path: Path) -> None:
    """They differ from the formula's, and count as weights."""
    rounded = official(384)
    exact = {**rounded, "rope_embed.periods": 100 ** (torch.arange(16) / 16)}
    given, other = (loaded("dinov3-s16", state, tmp_path, depth=DEPTH) for state in (rounded, exact))
    assert given.weights != other.weights
    tokens = [encoder(random_images(), [1]).patch[1] for encoder in (given, other)]
    assert (tokens[0] - tokens[1]).abs().max() > 1e-3


def test_file_in_half_precision(tmp_path: Path) -> None:
    state = {name: x.bfloat16() for name, x in official(384).items()}
    encoder = loaded("dinov3-s16", state, tmp_path, depth=DEPTH)
    whole = loaded("dinov3-s16", {name: x.float() for name, x in state.items()}, tmp_path, depth=DEPTH)
    assert encoder.weights == whole.weights


def test_keys_with_a_bias(tmp_path: Path) -> None:
    with pytest.raises(
        BeyondClsError, match=r"blocks\.0\.attn\.qkv\.bias gives keys a bias that `bias_mask` does not take away"
    ):
        loaded("dinov3-s16", official(384, (1, 1, 1)), tmp_path, depth=DEPTH)


def test_satellite_images_are_another_encoder(tmp_path: Path) -> None:
    """Its file has one norm more, and it saw images of other means."""
    state = {**official(384), "local_cls_norm.weight": torch.ones(384), "local_cls_norm.bias": torch.zeros(384)}
    with pytest.raises(BeyondClsError, match=r"unexpected: local_cls_norm\.bias, local_cls_norm\.weight$"):
        loaded("dinov3-s16", state, tmp_path, depth=DEPTH)


def test_final_norm_is_the_official_one(tmp_path: Path) -> None:
    state = official(384)
    norm, eps = loaded("dinov3-s16", state, tmp_path, depth=DEPTH).norm()
    assert torch.equal(norm["weight"], state["norm.weight"])
    assert eps == 1e-5


def test_has_to_be_asked_for() -> None:
    with pytest.raises(BeyondClsError, match=r"cannot be fetched by a program; get them from https://ai\.meta\.com/.*dinov3"):
        load_encoder("dinov3-s16")
