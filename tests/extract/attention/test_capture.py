"""Attention as it is seen during a forward pass, in every kind of block that timm has for plain ViTs."""

from typing import Any

import pytest
import torch
from torch import nn

from extract.attention import attention_of
from store import BeyondClsError
from tests.extract.tiny import sharpen, tiny_encoder

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("vit_tiny_patch16_224", {}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 4}),
    "normalised queries and keys": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "no [cls]": ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "relative position bias": ("beit_base_patch16_224", {}),
    "relative position bias by a network": ("vit_relpos_small_patch16_224", {}),
    "rotary": ("eva02_tiny_patch14_224", {}),
    "rotary and registers": ("vit_small_patch16_dinov3", {}),
}


@pytest.mark.parametrize(("model", "arguments"), KINDS.values(), ids=KINDS)
class TestEveryKindOfBlock:
    def test_rows_sum_to_one(self, model: str, arguments: dict[str, Any]) -> None:
        encoder = tiny_encoder(model=model, **arguments)
        sharpen(encoder.model, 8)
        seen: dict[int, torch.Tensor] = {}
        with attention_of(encoder.model.blocks, seen.__setitem__), torch.inference_mode():
            encoder.model.forward_features(torch.randn(3, 3, 32, 32))
        assert sorted(seen) == [0, 1]
        n = encoder.layout.n_prefix + 16
        for attention in seen.values():
            assert attention.shape == (3, 2, n, n)
            torch.testing.assert_close(attention.sum(-1), torch.ones(3, 2, n))
            assert attention.std() > 0.01, "uniform attention would hide a mistake"

    def test_tokens_are_those_of_the_untouched_model(self, model: str, arguments: dict[str, Any]) -> None:
        encoder = tiny_encoder(model=model, **arguments)
        images = torch.randn(2, 3, 32, 32)
        encoded = encoder(images, [1], encoder.statistics, maps=True)
        tokens = [encoded.cls[1][:, None]] if encoder.layout.has_cls else []
        tokens += [encoded.registers[1]] if encoder.layout.n_registers else []
        norm = encoder.model.norm
        with torch.inference_mode():
            expected = encoder.model.forward_features(images)  # fused attention, after the final norm
            torch.testing.assert_close(norm(torch.cat([*tokens, encoded.patch[1]], 1)), expected, rtol=0, atol=1e-5)


def fused_flags(model: nn.Module) -> list[bool]:
    return [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")]


def test_fused_attention_is_restored() -> None:
    model = tiny_encoder().model
    model.blocks[0].attn.fused_attn, model.blocks[1].attn.fused_attn = True, False  # whatever it was, not always on
    with attention_of(model.blocks, lambda *_: None):
        assert fused_flags(model) == [False, False]
    assert fused_flags(model) == [True, False]


def test_everything_is_restored_after_an_error() -> None:
    model = tiny_encoder().model
    model.blocks[0].attn.fused_attn = True

    def fail(block: int, attention: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), attention_of(model.blocks, fail):
        model.forward_features(torch.randn(1, 3, 32, 32))
    assert fused_flags(model)[0]
    model.forward_features(torch.randn(1, 3, 32, 32))  # no hook is left that would fail


def test_blocks_that_hide_their_attention() -> None:
    encoder = tiny_encoder(model="vit_small_patch16_18x2_224")
    images = torch.randn(1, 3, 32, 32)
    message = r"cannot see the attention of block 0 \(ParallelThingsBlock\); extract this encoder with --statistics none"
    with pytest.raises(BeyondClsError, match=message):
        encoder(images, [1], encoder.statistics)
    assert encoder(images, [1]).patch[1].shape == (1, 16, 32)


def test_a_block_without_attention_leaves_the_others_as_they_were() -> None:
    blocks = nn.Sequential(tiny_encoder().model.blocks[0], nn.Identity())
    blocks[0].attn.fused_attn = True
    with pytest.raises(BeyondClsError, match=r"block 1 \(Identity\)"), attention_of(blocks, lambda *_: None):
        pass
    assert blocks[0].attn.fused_attn
    assert not blocks[0].attn.attn_drop._forward_hooks
