"""Heads on a GPU that is not there: where PyTorch only works out shapes and devices, a tensor on the wrong one is an error."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from probe.aggregators import AGGREGATORS, make_aggregator
from probe.grid import HeadSpec
from probe.pooling import softmax_pool
from probe.segmentation.patch_head import PatchHead
from probe.stack import Stack
from probe.train import losses_of
from store.codecs import CODECS
from store.codecs.codec import Coded
from tests.fake_gpu import ON_A_FAKE_GPU

pytest.importorskip("triton")
pytestmark = ON_A_FAKE_GPU
B, T, D, M = 4, 16, 96, 2
VARIANTS = [(name, options) for name, kind in AGGREGATORS.items() for options in kind.variants]


def on_fake_gpu(module: torch.nn.Module) -> torch.nn.Module:
    """Its parameters and buffers moved to the GPU of the FakeTensorMode that this is called in."""
    for part in module.modules():
        part._parameters = {n: None if p is None else fake(p) for n, p in part._parameters.items()}  # type: ignore[assignment]
        part._buffers = {n: None if p is None else fake(p) for n, p in part._buffers.items()}
    return module


def fake(values: Tensor) -> Tensor:
    return torch.empty(values.shape, dtype=values.dtype, device="cuda")


def fake_features() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"patch": (B, T, D), "cls": (B, D), "registers": (B, 2, D), "pooled": (B, D)}
    shapes |= {f"{kind}/block{block}": shapes[kind] for kind in ("patch", "cls") for block in (3, 5)}
    maps = ("attention/cls", "attention/centre", "joined/attention/cls", "joined/attention/centre")
    shapes |= dict.fromkeys(maps, (B, 5, T))
    return {kind: torch.empty(shape, device="cuda") for kind, shape in shapes.items()}


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_every_aggregator_stays_on_its_device(name: str, options: dict[str, Any]) -> None:
    """A fake GPU refuses operations on tensors of several devices."""
    aggregator = make_aggregator(name, D, T, **options)
    with FakeTensorMode(), torch.no_grad():
        on_fake_gpu(aggregator)
        features = fake_features()
        parameters = {n: torch.stack([p] * M) for n, p in aggregator.named_parameters()}
        given = (*aggregator(features), *aggregator.pool_many(parameters, features, M))
        assert {x.device.type for x in given if x is not None} == {"cuda"}


@pytest.mark.parametrize("name", ["abmilp", "ep"])
def test_a_grid_steps_forward_on_its_device(name: str) -> None:
    """Logits, losses and running statistics of a Stack, with gradients wanted, as in training."""
    heads = [HeadSpec(name).build(D, T, 3, seed=seed) for seed in range(M)]
    stack = Stack(heads)
    with FakeTensorMode():
        on_fake_gpu(stack.template)
        stack.parameters = {n: fake(p).requires_grad_() for n, p in stack.parameters.items()}
        stack.running = {n: fake(p) for n, p in stack.running.items()}
        logits, weights = stack({"patch": fake(torch.empty(B, T, D, dtype=torch.float16))}, training=True)
        losses = losses_of(logits, torch.zeros(B, dtype=torch.long, device="cuda"))
        assert {x.device.type for x in (logits, weights, losses, *stack.running.values())} == {"cuda"}  # type: ignore[union-attr]


def test_a_head_of_patches_stays_on_its_device() -> None:
    head = PatchHead(torch.zeros(D), torch.ones(D), torch.zeros(3, D), torch.zeros(3), (4, 4))
    with FakeTensorMode(), torch.no_grad():
        assert on_fake_gpu(head)(fake_features()).device.type == "cuda"


@pytest.mark.parametrize("codec", [None, "bfloat16", "float8_e4m3", "int8", "int4"])
@pytest.mark.parametrize("misplaced", [None, 0, 1, 2])
def test_pooling_stays_on_its_device_and_finds_what_is_misplaced(codec: str | None, misplaced: int | None) -> None:
    parts = {"": torch.ones(B, T, 64)} if codec is None else CODECS[codec].encode(torch.ones(B, T, 64))
    with FakeTensorMode(), torch.no_grad():
        devices = ["cpu" if i == misplaced else "cuda" for i in range(3)]
        tokens, *others = (
            torch.empty(shape, device=d) for shape, d in zip([(B, T, 64), (3, 64), (3, T)], devices, strict=True)
        )
        if codec:
            of_tokens = {n: torch.empty(p.shape, dtype=p.dtype, device=devices[0]) for n, p in parts.items()}
            tokens = Coded(CODECS[codec], of_tokens)
        if misplaced is None:
            assert {x.device.type for x in softmax_pool(tokens, *others)} == {"cuda"}
        else:
            with pytest.raises((ValueError, RuntimeError), match=r"cpu and cuda:0|two devices|cuda:0 and cpu"):
                softmax_pool(tokens, *others)
