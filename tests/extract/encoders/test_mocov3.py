"""MoCo v3: which of three networks, and how many attention heads."""

from pathlib import Path

import pytest
import torch

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

SIZES = {"s16": (384, 12), "b16": (768, 12)}
DEPTH = 2


def with_head(width: int, depth: int = DEPTH) -> Shapes:
    """An encoder and its projection: three layers without bias, batch norms between them, one without parameters behind."""
    head: dict[str, tuple[int, ...]] = {}
    for linear, (rows, columns) in {0: (64, width), 3: (64, 64), 6: (32, 64)}.items():
        head[f"head.{linear}.weight"] = (rows, columns)
        head |= {f"head.{linear + 1}.running_{what}": (rows,) for what in ("mean", "var")}
        head[f"head.{linear + 1}.num_batches_tracked"] = ()
        if linear < 6:
            head |= {f"head.{linear + 1}.{what}": (rows,) for what in ("weight", "bias")}
    return {**vit_shapes(width, depth, 16, 197), **head}


def official(base: dict[str, torch.Tensor], momentum: dict[str, torch.Tensor]) -> dict[str, object]:
    networks = {
        **{f"module.base_encoder.{name}": x for name, x in base.items()},
        **{f"module.momentum_encoder.{name}": x for name, x in momentum.items()},
        "module.predictor.0.weight": torch.randn(64, 32),
    }
    return {"epoch": 300, "arch": "vit_small", "state_dict": networks, "optimizer": {"state": {}}, "scaler": {"scale": 1.0}}


def positions(width: int) -> torch.Tensor:
    """The fixed ones that the file holds: sine and cosine of the column, then of the row; none for [cls]."""
    rows, columns = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    frequencies = 10000 ** -(torch.arange(width // 4) / (width // 4))
    waves = [f(place.flatten()[:, None] * frequencies) for place in (columns, rows) for f in (torch.sin, torch.cos)]
    return torch.cat([torch.zeros(1, width), torch.cat(waves, 1)])[None]


def random_network(width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    return {**random_state(with_head(width), seed), "pos_embed": positions(width)}


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_at_full_size(size: str) -> None:
    width, heads = SIZES[size]
    network = empty_state(with_head(width, 12))
    assert_fits(f"mocov3-{size}", official(network, network))
    assert heads_of(f"mocov3-{size}") == heads


@pytest.mark.parametrize("size", SIZES)
def test_equals_plain_torch(size: str, tmp_path: Path) -> None:
    """The ViT-S has 12 heads, as the ViT-B."""
    width, heads = SIZES[size]
    base, images = random_network(width), random_images()
    encoder = loaded(f"mocov3-{size}", official(base, random_network(width, 1)), tmp_path, depth=DEPTH)
    assert_equal(encoder, images, vit(double(base), images.double(), heads))


def test_checkpoint_of_the_linear_classifier_has_the_same_encoder(tmp_path: Path) -> None:
    base = random_network(384)
    classifier = {**vit_shapes(384, DEPTH, 16, 197), "head.weight": (1000, 384), "head.bias": (1000,)}
    of_linear = {f"module.{name}": base.get(name, torch.zeros(shape)) for name, shape in classifier.items()}
    encoder = loaded("mocov3-s16", {"state_dict": of_linear, "best_acc1": torch.tensor(73.2)}, tmp_path, depth=DEPTH)
    assert encoder.weights == loaded("mocov3-s16", official(base, base), tmp_path, depth=DEPTH).weights


def test_momentum_encoder_alone(tmp_path: Path) -> None:
    network = random_network(384)
    content = official(network, network)
    content["state_dict"] = {f"module.momentum_encoder.{name}": x for name, x in network.items()}
    with pytest.raises(
        BeyondClsError, match=r"holds `momentum_encoder\.\*` without `base_encoder\.\*`, .* give the authors' file"
    ):
        loaded("mocov3-s16", content, tmp_path, depth=DEPTH)


def test_without_the_authors_prefixes(tmp_path: Path) -> None:
    """Any ViT-S would fit, and run with twice its attention heads. The message's remedy makes it a file that loads."""
    network = {**random_state(vit_shapes(384, DEPTH, 16, 197)), "pos_embed": positions(384)}
    with pytest.raises(
        BeyondClsError, match=r"no name in it begins with `base_encoder\.` or `module\.`, .* torch\.save"
    ) as caught:
        loaded("mocov3-s16", {"model": network}, tmp_path, depth=DEPTH)
    remedy = str(caught.value).partition("back: torch.save(")[2].removesuffix(", 'mocov3.pth')")
    encoder = loaded("mocov3-s16", eval(remedy, {"state": network}), tmp_path, depth=DEPTH)
    assert encoder.weights == loaded("mocov3-s16", official(network, network), tmp_path, depth=DEPTH).weights


def test_resnet(tmp_path: Path) -> None:
    network = random_state({"conv1.weight": (64, 3, 7, 7), "fc.0.weight": (64, 2048)})
    with pytest.raises(BeyondClsError, match=r"missing: .*unexpected: conv1\.weight, fc\.0\.weight$"):
        loaded("mocov3-s16", official(network, network), tmp_path, depth=DEPTH)
