"""Linear layers by oneDNN compute what torch's do, and only where nothing else is asked for."""

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from extract.forward import FastLinear
from store import onednn
from tests.extract.tiny import tiny_encoder


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
