"""DINOv2: positions for 518 pixels brought to 224, registers, SwiGLU."""

import math
from pathlib import Path

import pytest
import torch

from extract.encoders.dinov2 import at_224
from store import BeyondClsError
from tests.extract.encoders.official import (
    Shapes,
    assert_equal,
    assert_fits,
    close,
    double,
    empty_state,
    heads_of,
    loaded,
    random_images,
    random_state,
    vit_shapes,
)
from tests.extract.encoders.reference import Reference, State, linear, mlp, patches_of, vit_blocks

SIZES = {"s14": (384, 12, 6), "b14": (768, 12, 12), "l14": (1024, 24, 16), "g14": (1536, 40, 24)}
NAMES = [f"{family}-{size}" for family in ("dinov2", "dinov2-reg") for size in SIZES]
DEPTH, SIDE = 2, 37  # 518 / 14


def official(width: int, depth: int = DEPTH, registers: bool = False, swiglu: bool = False) -> Shapes:
    shapes = dict(vit_shapes(width, depth, 14, 1 + SIDE**2))
    shapes |= {"mask_token": (1, width)}
    if registers:
        shapes |= {"register_tokens": (1, 4, width)}
    for i in range(depth):
        shapes |= {f"blocks.{i}.ls1.gamma": (width,), f"blocks.{i}.ls2.gamma": (width,)}
        if swiglu:
            for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
                del shapes[f"blocks.{i}.mlp.{name}"]
            hidden = math.ceil(int(4 * width * 2 / 3) / 8) * 8
            for name, rows, columns in (("w12", 2 * hidden, width), ("w3", width, hidden)):
                shapes |= {f"blocks.{i}.mlp.{name}.weight": (rows, columns), f"blocks.{i}.mlp.{name}.bias": (rows,)}
    return shapes


def cubic(x: torch.Tensor, a: float) -> torch.Tensor:
    """Keys' kernel of parameter `a`."""
    x = x.abs()
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def resizing(registers: bool) -> torch.Tensor:
    """[16, 37]: how much of each old position is in each new one, along one axis."""
    matrix, old = torch.zeros(16, SIDE, dtype=torch.double), torch.arange(SIDE, dtype=torch.double)
    for new in range(16):
        if registers:  # a kernel as wide as it takes to see every old position, a = -0.5
            scale = SIDE / 16
            weights = cubic((old + 0.5 - (new + 0.5) * scale) / scale, -0.5)
            matrix[new] = weights / weights.sum()
        else:  # four neighbours of a place that a grid of 16.1 gives, a = -0.75; the border counts again outside
            place = (new + 0.5) * SIDE / 16.1 - 0.5
            for tap in range(math.floor(place) - 1, math.floor(place) + 3):
                matrix[new, min(max(tap, 0), SIDE - 1)] += cubic(torch.tensor(place - tap, dtype=torch.double), -0.75)
    return matrix


def resized(positions: torch.Tensor, registers: bool) -> torch.Tensor:
    """[1, 37 * 37, D] -> [1, 16 * 16, D]."""
    rows = torch.einsum("ni,bijd->bnjd", resizing(registers), positions.unflatten(1, (SIDE, SIDE)))
    return torch.einsum("mj,bnjd->bnmd", resizing(registers), rows).flatten(1, 2)


def swiglu(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    gate, value = linear(state, f"{name}.w12", x).chunk(2, -1)
    return linear(state, f"{name}.w3", gate / (1 + (-gate).exp()) * value)


def reference(state: State, images: torch.Tensor, heads: int) -> Reference:
    registers = "register_tokens" in state
    positions = torch.cat([state["pos_embed"][:, :1], resized(state["pos_embed"][:, 1:], registers)], 1)
    patches = patches_of(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"])
    x = torch.cat([state["cls_token"], patches], 1) + positions
    if registers:
        x = torch.cat([x[:, :1], state["register_tokens"], x[:, 1:]], 1)
    return vit_blocks(state, x, heads, feed_forward=swiglu if "blocks.0.mlp.w12.weight" in state else mlp)


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_at_full_size(name: str) -> None:
    size = name[-3:]
    width, depth, heads = SIZES[size]
    assert_fits(name, empty_state(official(width, depth, "reg" in name, size == "g14")))
    assert heads_of(name) == heads


@pytest.mark.parametrize("name", [name for name in NAMES if name[-3] in "sb"])
def test_equals_plain_torch(name: str, tmp_path: Path) -> None:
    width, _, heads = SIZES[name[-3:]]
    state, images = random_state(official(width, registers="reg" in name)), random_images()
    encoder = loaded(name, state, tmp_path, depth=DEPTH)
    assert encoder.layout.n_registers == (4 if "reg" in name else 0)
    assert_equal(encoder, images, reference(double(state), images.double(), heads))


def test_feed_forward_of_the_giant(tmp_path: Path) -> None:
    """At the width of the small one."""
    state, images = random_state(official(384, swiglu=True)), random_images()
    encoder = loaded("dinov2-g14", state, tmp_path, depth=DEPTH, embed_dim=384, num_heads=6)
    assert_equal(encoder, images, reference(double(state), images.double(), 6))


@pytest.mark.parametrize("registers", [False, True])
def test_positions(registers: bool) -> None:
    positions = random_state({"pos_embed": (1, SIDE**2, 8)})["pos_embed"]
    close(at_224(positions, registers), resized(positions.double(), registers), 1e-5)
    assert (at_224(positions, registers) - at_224(positions, not registers)).abs().max() > 0.1


def test_positions_that_are_those_of_224() -> None:
    positions = torch.randn(1, 256, 8)
    assert at_224(positions, False) is positions


def test_with_registers_for_without(tmp_path: Path) -> None:
    message = r"another architecture\. unexpected: reg_token; other shape: pos_embed \[1, 256, 384\] for \[1, 257, 384\]"
    with pytest.raises(BeyondClsError, match=message):
        loaded("dinov2-s14", random_state(official(384, registers=True)), tmp_path, depth=DEPTH)


def test_without_registers_for_with(tmp_path: Path) -> None:
    message = r"another architecture\. missing: reg_token; other shape: pos_embed \[1, 257, 384\] for \[1, 256, 384\]"
    with pytest.raises(BeyondClsError, match=message):
        loaded("dinov2-reg-s14", random_state(official(384)), tmp_path, depth=DEPTH)


def test_no_positions(tmp_path: Path) -> None:
    state = random_state(official(384))
    del state["pos_embed"]
    with pytest.raises(BeyondClsError, match=r"another architecture\. missing: pos_embed$"):
        loaded("dinov2-s14", state, tmp_path, depth=DEPTH)
