"""MLP-Mixer: files of timm's hub; tokens without attention."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from extract.encoders import load_encoder
from store import BeyondClsError
from tests.extract.encoders.official import assert_equal, double, loaded, random_state, shapes_of
from tests.extract.encoders.reference import Reference, State, gelu, layer_norm, linear, patches_of

WIDTH, DEPTH = 768, 12  # timm lets nobody change them


def official_shapes(n_tokens: int) -> dict[str, Sequence[int]]:
    shapes: dict[str, Sequence[int]] = {
        "stem.proj.weight": (WIDTH, 3, 16, 16),
        "stem.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
    }
    for i in range(DEPTH):
        for name, inside, outside in (("mlp_tokens", 384, n_tokens), ("mlp_channels", 3072, WIDTH)):
            shapes[f"blocks.{i}.{name}.fc1.weight"] = (inside, outside)
            shapes[f"blocks.{i}.{name}.fc1.bias"] = (inside,)
            shapes[f"blocks.{i}.{name}.fc2.weight"] = (outside, inside)
            shapes[f"blocks.{i}.{name}.fc2.bias"] = (outside,)
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            shapes[f"blocks.{i}.{name}"] = (WIDTH,)
    return shapes


def reference(state: State, images: Tensor) -> Reference:
    x, out = patches_of(images, state["stem.proj.weight"], state["stem.proj.bias"]), Reference()
    while f"blocks.{len(out.tokens)}.norm1.weight" in state:
        name = f"blocks.{len(out.tokens)}"
        columns = layer_norm(state, f"{name}.norm1", x).transpose(1, 2)  # [B, D, T]
        mixed = linear(state, f"{name}.mlp_tokens.fc2", gelu(linear(state, f"{name}.mlp_tokens.fc1", columns)))
        x = x + mixed.transpose(1, 2)
        hidden = gelu(linear(state, f"{name}.mlp_channels.fc1", layer_norm(state, f"{name}.norm2", x)))
        x = x + linear(state, f"{name}.mlp_channels.fc2", hidden)
        out.tokens.append(x)
    return out


def test_names_and_shapes_at_full_size() -> None:
    assert shapes_of("mixer-b16") == official_shapes(196)


def test_equals_plain_torch(tmp_path: Path) -> None:
    """Of 4 x 4 patches, as the mixer cannot be made less deep. The classifier is dropped."""
    state = random_state({**official_shapes(16), "head.weight": (10, WIDTH), "head.bias": (10,)})
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    encoder = loaded("mixer-b16", state, tmp_path, img_size=64)
    assert_equal(encoder, images, reference(double(state), images.double()))
    assert encoder.described_transform["input_size"] == [3, 64, 64]


def test_has_patches_and_nothing_else() -> None:
    encoder = load_encoder("mixer-b16", random_seed=0)
    assert (encoder.layout.has_cls, encoder.layout.n_prefix, encoder.attends) == (False, 0, False)
    assert encoder.statistics == ()
    _, eps = encoder.norm()
    assert eps == 1e-6
    assert {module.eps for module in encoder.model.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}
    described = encoder.described_transform
    assert described["mean"] == described["std"] == [0.5, 0.5, 0.5]
    assert described["crop_pct"] == 0.875


def test_weights_of_another_image_size_are_refused(tmp_path: Path) -> None:
    """They are per position."""
    state = random_state({"blocks.0.mlp_tokens.fc1.weight": (384, 16)})
    with pytest.raises(BeyondClsError, match=r"other shape: blocks\.0\.mlp_tokens\.fc1\.weight \[384, 16\] for \[384, 196\]"):
        loaded("mixer-b16", state, tmp_path)


def test_any_name_of_timm() -> None:
    encoder = load_encoder("gmlp_ti16_224", random_seed=0)
    assert not encoder.attends
    assert encoder(torch.zeros(1, 3, 224, 224), [1]).patch[1].shape == (1, 196, 128)
