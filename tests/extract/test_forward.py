"""Stochastic depth: what is dropped, at which rate, that any machine drops the same, and that view 0 is not concerned. Linear
layers by oneDNN compute what torch's do, and only where nothing else is asked for.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import nn

from extract.datasets import ImageSet
from extract.encoders import Encoder, load_encoder
from extract.forward import BRANCHES, FastLinear, draw_factors
from extract.requests import Request
from store import BeyondClsError, FeatureStore, StoreError, onednn
from tests.extract.extracting import extract
from tests.extract.tiny import tiny_encoder
from tests.folders import files

IDS = [f"{i:04d}" for i in range(8)]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 4},
    "beit_base_patch16_224": {"depth": 4},  # position bias, γ: SimMIM and BEiT v2
    "vit_small_patch14_dinov2": {"depth": 4, "reg_tokens": 1, "init_values": 0.5},  # LayerScale, registers
    "eva02_tiny_patch14_224": {"depth": 4},  # rotary embedding
}
EVERY: Any = {"statistics": ["patch_self"], "maps": [3], "vectors": [2]}


def encoder_of(model: str) -> Encoder:
    return tiny_encoder(0, model, **ARCHITECTURES[model])


def pictures(n: int = 8) -> torch.Tensor:
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Drawn(DropPath):
    """Drops as timm's module does in training, with given draws in place of its own."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors[:, None, None]


def put_in_place(encoder: Encoder, factors: torch.Tensor) -> None:
    for block, of_block in zip(encoder.model.blocks, factors.unbind(1), strict=True):
        for branch, of_branch in zip(BRANCHES, of_block.unbind(1), strict=True):
            setattr(block, branch, Drawn(of_branch))


@pytest.mark.parametrize("model", ARCHITECTURES)
class TestOfAnEncoder:
    def test_it_is_what_drop_path_of_the_model_itself_does(self, model: str) -> None:
        encoder, dropping = encoder_of(model), encoder_of(model)
        factors = encoder.drop_factors(IDS, 1, 0.8)
        put_in_place(dropping, factors)
        ours, theirs = encoder(pictures(), [3], **EVERY, factors=factors), dropping(pictures(), [3], **EVERY)
        assert torch.equal(ours.patch[3], theirs.patch[3])
        assert torch.equal(ours.statistics["patch_self"], theirs.statistics["patch_self"])
        assert not torch.equal(ours.patch[3], encoder(pictures(), [3]).patch[3])

    def test_a_rate_of_0_changes_no_bit(self, model: str) -> None:
        encoder = encoder_of(model)
        factors = encoder.drop_factors(IDS, 1, 0.0)
        assert bool((factors == 1).all())
        plain, same = encoder(pictures(), [1, 3]), encoder(pictures(), [1, 3], factors=factors)
        assert all(torch.equal(plain.patch[block], same.patch[block]) for block in (1, 3))

    def test_without_any_branch_the_embedding_is_left(self, model: str) -> None:
        encoder = encoder_of(model)
        embedded: list[torch.Tensor] = []
        hook = encoder.model.blocks[0].register_forward_pre_hook(lambda _m, inputs: embedded.append(inputs[0]))
        encoded = encoder(pictures(), [3], factors=torch.zeros(8, 4, 2))
        hook.remove()
        assert torch.equal(encoded.patch[3], embedded[0][:, encoder.layout.n_prefix :])

    def test_the_mean_over_draws_is_the_plain_branch(self, model: str) -> None:
        """Of attention in the last block, without its MLP, whose input depends on the draw: (1 - p) · 1 / (1 - p) = 1."""
        encoder, p = encoder_of(model), 0.25
        tokens = []
        for factor in (0.0, 1 / (1 - p), 1.0):
            factors = torch.ones(8, 4, 2)
            factors[:, 3] = torch.tensor([factor, 0.0])
            tokens.append(encoder(pictures(), [3], factors=factors).patch[3].double())
        dropped, kept, plain = tokens
        assert not torch.allclose(dropped, plain, atol=1e-4)
        torch.testing.assert_close(p * dropped + (1 - p) * kept, plain, rtol=0, atol=1e-5)

    def test_each_image_has_draws_of_its_own(self, model: str) -> None:
        encoder = encoder_of(model)
        together = encoder(pictures(), [3], factors=encoder.drop_factors(IDS, 2, 0.8)).patch[3]
        for i in (0, 5):
            alone = encoder(pictures()[i : i + 1], [3], factors=encoder.drop_factors(IDS[i : i + 1], 2, 0.8)).patch[3]
            torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-5)


class TestDraws:
    def test_rates_rise_linearly_and_survivors_make_up_for_the_others(self) -> None:
        n, rate = 20_000, 0.6
        factors = draw_factors([str(i) for i in range(n)], 1, rate, 4).double()
        p = torch.linspace(0, rate, 4, dtype=torch.float64)[:, None].expand(4, 2)
        assert torch.equal(factors[:, 0], torch.ones(n, 2, dtype=torch.float64)), "the first block is always kept"
        torch.testing.assert_close((factors == 0).double().mean(0), p, rtol=0, atol=0.012)  # 3.5 standard errors
        torch.testing.assert_close(factors.amax(0), (1 / (1 - p)).float().double())
        torch.testing.assert_close(factors.mean(0), torch.ones(4, 2, dtype=torch.float64), rtol=0, atol=0.03)
        dropped = (factors[:, 3] == 0).double()
        assert float((dropped[:, 0] * dropped[:, 1]).mean()) == pytest.approx(rate**2, abs=0.012), "attention and MLP apart"

    def test_fixed_draws(self) -> None:
        """Features that were stored before belong to these."""
        dropped = (draw_factors(["0001", "é"], 1, 0.9, 4) == 0).int().tolist()
        assert dropped == [[[0, 0], [0, 1], [1, 1], [1, 1]], [[0, 0], [1, 0], [1, 0], [1, 1]]]

    def test_they_depend_on_image_and_view_alone(self) -> None:
        factors = draw_factors(IDS, 3, 0.5, 12)
        assert torch.equal(draw_factors(IDS[::-1], 3, 0.5, 12), factors.flip(0))
        assert torch.equal(draw_factors(IDS[2:3], 3, 0.5, 12)[0], factors[2])
        assert not torch.equal(draw_factors(IDS, 4, 0.5, 12), factors)

    def test_a_higher_rate_drops_what_a_lower_one_does(self) -> None:
        low, high = (draw_factors(IDS, 1, rate, 12) == 0 for rate in (0.3, 0.6))
        assert bool((high | ~low).all())
        assert int(high.sum()) > int(low.sum())


FEW: Any = {"shard_rows": 32, "statistics": ["patch_self"], "maps": False}
RATE: Any = {**FEW, "views": 3, "drop_path": 0.9, "on_error": "record"}


class TestExtraction:
    def test_view_0_is_exact_and_crops_are_those_of_the_encoder(self, forty: ImageSet, tmp_path: Path) -> None:
        encoder = tiny_encoder(depth=4)
        plain = extract(encoder, forty, tmp_path / "plain", **FEW, views=3, vectors="all", batch_size=7)
        noisy = extract(encoder, forty, tmp_path / "noisy", **RATE, vectors="all", batch_size=7)
        assert plain is not None
        assert noisy is not None
        for name in plain.arrays:
            equal = np.array_equal(plain.array(name).all(), noisy.array(name).all())
            concerned = name.endswith(("view1", "view2")) and not name.startswith("images/") and "/block0/" not in name
            assert equal != concerned, name
        crop = encoder.views.cut(forty.image(7), "0007", 2)[0][None]
        expected = encoder(crop, [3], factors=encoder.drop_factors(["0007"], 2, 0.9)).patch[3]
        np.testing.assert_allclose(noisy.array("patch/block3/view2").rows([7]), expected, rtol=2e-3, atol=2e-3)

    def test_other_batches_and_a_resumed_run_give_the_same(self, images: ImageSet, tmp_path: Path) -> None:
        """Two of the 70 images cannot be read, so rows of a batch move."""
        encoder = tiny_encoder(depth=4)
        extract(encoder, images, tmp_path / "whole", **RATE, batch_size=12)

        def interrupt(n: int) -> None:
            done.append(n)
            if sum(done) > 40:
                raise KeyboardInterrupt

        done: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            extract(encoder, images, tmp_path / "resumed", **RATE, batch_size=12, progress=interrupt)
        extract(encoder, images, tmp_path / "resumed", **RATE, batch_size=12)
        assert files(tmp_path / "resumed") == files(tmp_path / "whole")
        other = extract(encoder, images, tmp_path / "other", **RATE, batch_size=5)
        whole = FeatureStore.open(tmp_path / "whole")
        assert other is not None
        for name in whole.arrays:
            np.testing.assert_allclose(
                other.array(name).all().astype(float), whole.array(name).all().astype(float), rtol=2e-3, atol=2e-3
            )

    def test_a_set_that_exists_is_confirmed_by_the_same_draws(self, forty: ImageSet, tmp_path: Path) -> None:
        checked: list[Any] = []
        for _ in range(2):
            extract(tiny_encoder(depth=4), forty, tmp_path / "f", **RATE, checked=lambda *both: checked.append(both[1]))
        assert len(checked) == 1
        assert checked[0].agrees

    def test_crops_are_added_at_the_rate_of_those_that_are_there(self, forty: ImageSet, tmp_path: Path) -> None:
        encoder = tiny_encoder(depth=4)
        whole = extract(encoder, forty, tmp_path / "whole", **RATE)
        extract(encoder, forty, tmp_path / "f", **FEW)
        extract(encoder, forty, tmp_path / "f", **{**RATE, "views": 2}, existing="extend")
        with pytest.raises(StoreError, match=r"drop_path \(0\.9 and 0\.5\) differ"):
            extract(encoder, forty, tmp_path / "f", **{**RATE, "drop_path": 0.5}, existing="extend")
        extract(encoder, forty, tmp_path / "f", **RATE, existing="extend")
        assert files(tmp_path / "f") == files(tmp_path / "whole")
        blocks = extract(encoder, forty, tmp_path / "f", **FEW, blocks=[1], existing="extend")
        assert whole is not None
        assert blocks is not None
        assert (blocks.spec.drop_path, blocks.spec.n_views) == (0.9, 3)


def test_the_rate_is_in_the_key_unless_it_is_0(forty: ImageSet) -> None:
    encoder = tiny_encoder()
    plain, off, on = (
        Request.resolve(encoder, forty, views=2, **rate).spec for rate in ({}, {"drop_path": 0}, {"drop_path": 0.1})
    )
    assert plain.to_dict() == off.to_dict()
    assert "drop_path" not in plain.to_dict()
    assert on == replace(plain, drop_path=0.1)
    assert on.key != plain.key


OTHERS: dict[str, dict[str, Any]] = {
    "convnext_tiny": {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)},
    "mixer_s16_224": {"img_size": 32},
    "capi-l14": {"img_size": 28, "dim": 32, "depth": 2, "n_heads": 2},
}


@pytest.mark.parametrize("model", OTHERS)
def test_an_encoder_without_the_two_branches(model: str, forty: ImageSet) -> None:
    encoder = load_encoder("own", model=model, arguments=OTHERS[model], random_seed=0)
    with pytest.raises(BeyondClsError, match="own was given drop_path, but its blocks"):
        Request.resolve(encoder, forty, views=2, drop_path=0.1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of what went through oneDNN."""
    seen: list[torch.Size] = []
    original = onednn.linear

    def spy(input: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        seen.append(input.shape)
        return original(input, *rest, **named)

    monkeypatch.setattr(onednn, "linear", spy)
    return seen


@pytest.mark.parametrize("shape", [(5, 48), (3, 17, 48), (2, 4, 4, 48)])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_float64(calls: list[torch.Size], shape: tuple[int, ...], biased: bool) -> None:
    x, layer = torch.randn(shape), nn.Linear(48, 33, bias=biased)
    with torch.no_grad(), FastLinear():
        given = layer(x)
        named = F.linear(input=x, weight=layer.weight, bias=layer.bias)
    expected = F.linear(x.double(), layer.weight.double(), layer.bias.double() if biased else None)
    torch.testing.assert_close(given, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(named, given, rtol=0, atol=0)
    assert calls == [torch.Size(shape)] * 2


def test_a_transposed_input(calls: list[torch.Size]) -> None:
    x, weight = torch.randn(48, 3, 7).permute(2, 1, 0), torch.randn(33, 48)
    with torch.no_grad(), FastLinear():
        given = F.linear(x, weight)
    torch.testing.assert_close(given, (x.double() @ weight.double().T).float(), rtol=1e-5, atol=1e-5)
    assert len(calls) == 1


def test_leaves_all_else_alone(calls: list[torch.Size]) -> None:
    layer = nn.Linear(8, 4)
    with FastLinear():
        layer(torch.randn(2, 8)).sum().backward()
        assert layer.weight.grad is not None
        with torch.no_grad():
            assert layer.double()(torch.randn(2, 8).double()).dtype == torch.float64
            layer.float()
            assert layer(torch.randn(0, 8)).shape == (0, 4)
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(torch.randn(2, 8)).dtype == torch.bfloat16
    assert calls == []


@pytest.mark.parametrize(("capability", "expected"), [("AVX512", True), ("AVX2", False), ("DEFAULT", False)])
def test_depends_on_the_processor(monkeypatch: pytest.MonkeyPatch, capability: str, expected: bool) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert onednn.is_faster() is expected


@pytest.mark.parametrize("statistics", [(), ("cls_self", "patch_norm_ratio")])
def test_an_encoder_uses_it_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, calls: list[torch.Size], statistics: tuple[str, ...]
) -> None:
    images = torch.randn(2, 3, 32, 32)
    monkeypatch.setattr(onednn, "is_faster", lambda: False)
    plain = tiny_encoder()(images, [1], statistics)
    assert calls == []
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    encoder = tiny_encoder()
    fast = encoder(images, [1], statistics)
    layers = sum(isinstance(module, nn.Linear) for module in cast(nn.Module, encoder.model.blocks).modules())
    assert len(calls) == layers
    torch.testing.assert_close(fast.patch[1], plain.patch[1], rtol=1e-4, atol=1e-5)
    encoder.run_with(compile=True)
    assert encoder._linear is not FastLinear  # inductor chooses
