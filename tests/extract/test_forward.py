"""Stochastic depth; linear layers by oneDNN, which compute what torch's do; operations against a ViT's closed form."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import nn

from extract.encoders import load_encoder
from extract.encoders.pretrained import timm_model
from extract.forward import BRANCHES, FastLinear, draw_factors, flops_of
from extract.requests import Request
from store import BeyondClsError, StoreError, onednn
from tests.extract.extracting import extract
from tests.extract.tiny import TINY, tiny_encoder
from tests.folders import files

IDS = [f"{i:04d}" for i in range(8)]
PICTURES = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {},
    "beit_base_patch16_224": {},  # position bias, γ: SimMIM and BEiT v2
    "vit_small_patch14_dinov2": {"reg_tokens": 1, "init_values": 0.5},  # LayerScale, registers
    "eva02_tiny_patch14_224": {},  # rotary embedding
}


class Drawn(DropPath):
    """Drops as timm's module does in training, with given draws in place of its own."""

    def __init__(self, factors):
        super().__init__()
        self.factors = factors

    def forward(self, x):
        return x * self.factors[:, None, None]


@pytest.mark.parametrize("model", ARCHITECTURES)
class TestOfAnEncoder:
    @pytest.fixture
    def encoder(self, model):
        return tiny_encoder(0, model, depth=4, **ARCHITECTURES[model])

    def test_it_is_what_drop_path_of_the_model_itself_does(self, encoder, model):
        dropping = tiny_encoder(0, model, depth=4, **ARCHITECTURES[model])
        factors, every = draw_factors(IDS, 1, 0.8, 4), ([3], ["patch_self"], [3], [2])
        for block, of_block in zip(dropping.model.blocks, factors.unbind(1), strict=True):
            for branch, of_branch in zip(BRANCHES, of_block.unbind(1), strict=True):
                setattr(block, branch, Drawn(of_branch))
        ours, theirs = encoder(PICTURES, *every, factors=factors), dropping(PICTURES, *every)
        assert torch.equal(ours.patch[3], theirs.patch[3])
        assert torch.equal(ours.statistics["patch_self"], theirs.statistics["patch_self"])
        assert not torch.equal(ours.patch[3], encoder(PICTURES, [3]).patch[3])
        for i in (0, 5):  # each image has draws of its own
            alone = encoder(PICTURES[i : i + 1], [3], factors=draw_factors(IDS[i : i + 1], 1, 0.8, 4)).patch[3]
            torch.testing.assert_close(alone[0], ours.patch[3][i], rtol=0, atol=1e-5)

    def test_a_rate_of_0_changes_no_bit_and_without_any_branch_the_embedding_is_left(self, encoder):
        factors, embedded = draw_factors(IDS, 1, 0.0, 4), []
        assert bool((factors == 1).all())
        plain, same = encoder(PICTURES, [1, 3]), encoder(PICTURES, [1, 3], factors=factors)
        assert all(torch.equal(plain.patch[block], same.patch[block]) for block in (1, 3))
        encoder.model.blocks[0].register_forward_pre_hook(lambda _m, inputs: embedded.append(inputs[0]))
        encoded = encoder(PICTURES, [3], factors=torch.zeros(8, 4, 2))
        assert torch.equal(encoded.patch[3], embedded[0][:, encoder.layout.n_prefix :])


class TestDraws:
    def test_rates_rise_linearly_and_survivors_make_up_for_the_others(self):
        n, rate = 20_000, 0.6
        factors = draw_factors([str(i) for i in range(n)], 1, rate, 4).double()
        p = torch.linspace(0, rate, 4, dtype=torch.float64)[:, None].expand(4, 2)
        assert bool((factors[:, 0] == 1).all()), "the first block is always kept"
        torch.testing.assert_close((factors == 0).double().mean(0), p, rtol=0, atol=0.012)  # 3.5 standard errors
        torch.testing.assert_close(factors.amax(0), (1 / (1 - p)).float().double())
        torch.testing.assert_close(factors.mean(0), torch.ones(4, 2, dtype=torch.float64), rtol=0, atol=0.03)
        both = (factors[:, 3] == 0).all(1).double().mean().item()
        assert both == pytest.approx(rate**2, abs=0.012), "attention and MLP apart"

    def test_fixed_draws(self):
        """Features that were stored before belong to these."""
        dropped = (draw_factors(["0001", "é"], 1, 0.9, 4) == 0).int().tolist()
        assert dropped == [[[0, 0], [0, 1], [1, 1], [1, 1]], [[0, 0], [1, 0], [1, 0], [1, 1]]]

    def test_they_depend_on_image_and_view_alone_and_a_higher_rate_drops_what_a_lower_one_does(self):
        factors = draw_factors(IDS, 3, 0.5, 12)
        assert torch.equal(draw_factors(IDS[::-1], 3, 0.5, 12), factors.flip(0))
        assert not torch.equal(draw_factors(IDS, 4, 0.5, 12), factors)
        low, high = (draw_factors(IDS, 1, rate, 12) == 0 for rate in (0.3, 0.6))
        assert bool((high | ~low).all())
        assert int(high.sum()) > int(low.sum())


FEW: Any = {"shard_rows": 32, "statistics": ["patch_self"], "maps": False}
RATE: Any = {**FEW, "views": 3, "drop_path": 0.9, "on_error": "record"}


class TestExtraction:
    @pytest.fixture
    def encoder(self):
        return tiny_encoder(depth=4)

    def test_view_0_is_exact_and_crops_are_those_of_the_encoder(self, encoder, forty, tmp_path):
        plain = extract(encoder, forty, tmp_path / "plain", **FEW, views=3, vectors="all", batch_size=7)
        noisy = extract(encoder, forty, tmp_path / "noisy", **RATE, vectors="all", batch_size=7)
        for name in plain.arrays:
            equal = np.array_equal(plain.array(name).all(), noisy.array(name).all())
            concerned = name.endswith(("view1", "view2")) and not name.startswith("images/") and "/block0/" not in name
            assert equal != concerned, name
        crop = encoder.views.cut(forty.image(7), "0007", 2)[0][None]
        expected = encoder(crop, [3], factors=draw_factors(["0007"], 2, 0.9, 4)).patch[3]
        np.testing.assert_allclose(noisy.array("patch/block3/view2").rows([7]), expected, rtol=2e-3, atol=2e-3)

    def test_a_resumed_run_and_a_check_draw_the_same(self, encoder, images, tmp_path):
        """Two of the 70 images cannot be read, so rows of a batch move."""
        extract(encoder, images, tmp_path / "whole", **RATE, batch_size=5)
        done, checks = [], []

        def interrupt(n):
            done.append(n)
            if sum(done) > 40:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            extract(encoder, images, tmp_path / "resumed", **RATE, batch_size=12, progress=interrupt)
        for _ in range(2):
            extract(encoder, images, tmp_path / "resumed", **RATE, batch_size=12, checked=lambda *both: checks.append(both))
        assert [check.agrees for _, check in checks] == [True]
        assert files(tmp_path / "resumed") == files(tmp_path / "whole")

    def test_crops_are_added_at_the_rate_of_those_that_are_there(self, encoder, forty, tmp_path):
        forty = forty.part(range(9))
        extract(encoder, forty, tmp_path / "whole", **RATE)
        extract(encoder, forty, tmp_path / "f", **FEW)
        extract(encoder, forty, tmp_path / "f", **{**RATE, "views": 2}, existing="extend")
        with pytest.raises(StoreError, match=r"drop_path \(0\.9 and 0\.5\) differ"):
            extract(encoder, forty, tmp_path / "f", **{**RATE, "drop_path": 0.5}, existing="extend")
        extract(encoder, forty, tmp_path / "f", **RATE, existing="extend")
        assert files(tmp_path / "f") == files(tmp_path / "whole")
        blocks = extract(encoder, forty, tmp_path / "f", **FEW, blocks=[1], existing="extend")
        assert (blocks.spec.drop_path, blocks.spec.n_views) == (0.9, 3)

    def test_the_rate_is_in_the_key_unless_it_is_0(self, encoder, forty):
        rates = ({}, {"drop_path": 0}, {"drop_path": 0.1})
        plain, off, on = (Request.resolve(encoder, forty, views=2, **rate).spec for rate in rates)
        assert plain.to_dict() == off.to_dict()
        assert "drop_path" not in plain.to_dict()
        assert on == replace(plain, drop_path=0.1)
        assert on.key != plain.key


@pytest.mark.parametrize(("model", "arguments"), [("convnext_atto", {}), ("mixer_s16_224", {"img_size": 32})])
def test_an_encoder_without_the_two_branches(model, arguments, forty):
    encoder = load_encoder("own", model=model, arguments=arguments, random_seed=0)
    with pytest.raises(BeyondClsError, match="own was given drop_path, but its blocks"):
        Request.resolve(encoder, forty, views=2, drop_path=0.1)


@pytest.fixture
def calls(monkeypatch):
    """Shapes of what went through oneDNN."""
    seen, original = [], onednn.linear
    spy = lambda input, *rest, **named: seen.append(input.shape) or original(input, *rest, **named)  # noqa: E731
    monkeypatch.setattr(onednn, "linear", spy)
    return seen


@pytest.mark.parametrize("x", [torch.randn(5, 48), torch.randn(2, 4, 4, 48), torch.randn(48, 3, 7).permute(2, 1, 0)])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_float64(calls, x, biased):
    layer = nn.Linear(48, 33, bias=biased)
    with torch.no_grad(), FastLinear():
        given, named = layer(x), F.linear(input=x, weight=layer.weight, bias=layer.bias)
    expected = F.linear(x.double(), layer.weight.double(), layer.bias.double() if biased else None)
    torch.testing.assert_close(given, expected.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(named, given)
    assert calls == [x.shape] * 2


def test_leaves_all_else_alone(calls):
    layer = nn.Linear(8, 4)
    with FastLinear():
        layer(torch.randn(2, 8)).sum().backward()
        assert layer.weight.grad is not None
        with torch.no_grad():
            assert layer.double()(torch.randn(2, 8).double()).dtype == torch.float64
            assert layer.float()(torch.randn(0, 8)).shape == (0, 4)
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(torch.randn(2, 8)).dtype == torch.bfloat16
    assert calls == []


@pytest.mark.parametrize(("capability", "expected"), [("AVX512", True), ("AVX2", False), ("DEFAULT", False)])
def test_depends_on_the_processor(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert onednn.is_faster() is expected


def test_an_encoder_uses_it_where_it_is_faster(monkeypatch, calls):
    statistics = ("cls_self", "patch_norm_ratio")
    monkeypatch.setattr(onednn, "is_faster", lambda: False)
    plain = tiny_encoder()(PICTURES, [1], statistics)
    assert calls == []
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    encoder = tiny_encoder()
    fast = encoder(PICTURES, [1], statistics)
    assert len(calls) == sum(isinstance(module, nn.Linear) for module in encoder.model.blocks.modules())
    torch.testing.assert_close(fast.patch[1], plain.patch[1], rtol=1e-4, atol=1e-5)
    encoder.run_with(compile=True)
    assert encoder._linear is not FastLinear  # inductor chooses


def n_products(side: int, patch: int, width: int, depth: int) -> int:
    """Of a plain ViT with [cls]: patches, and in each block q, k, v, projection and MLP, then q·k and a·v."""
    n_patches = (side // patch) ** 2
    n = n_patches + 1
    return n_patches * 3 * patch**2 * width + depth * (n * width * 12 * width + 2 * n * n * width)


def test_operations_are_counted_without_moving_weights():
    with torch.device("meta"):
        assert flops_of(timm_model("vit_base_patch16_224"), (3, 224, 224)) == 2 * n_products(224, 16, 768, 12) == 35_126_120_448
    model = tiny_encoder().model
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    assert flops_of(model, (3, 32, 32)) == 2 * n_products(*(TINY[n] for n in ("img_size", "patch_size", "embed_dim", "depth")))
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before
    hesitant = nn.Module()  # looks at values before it goes on
    hesitant.forward_features = lambda images: images if images.mean() > 0 else -images
    assert flops_of(hesitant, (3, 8, 8)) is None
