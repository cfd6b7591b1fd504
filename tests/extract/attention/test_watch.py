"""Attention as it is seen during a forward pass, in every kind of block that timm has for plain ViTs."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from extract.attention import watch, watched
from extract.attention.attention import TokenLayout
from store import BeyondClsError
from tests.extract.attention.untouched import assert_attention_of_the_model, assert_tokens_of_the_model
from tests.extract.tiny import need_cait, tiny_encoder

# Beside those of docs/encoders.md, which encoders/test_current.py compares.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("vit_tiny_patch16_224", {}),
    "normalised queries and keys": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "relative position bias": ("beit_base_patch16_224", {}),
    "relative position bias by a network": ("vit_relpos_small_patch16_224", {}),
}


@pytest.mark.parametrize(("model", "arguments"), KINDS.values(), ids=KINDS)
class TestEveryKindOfBlock:
    def test_attention_is_that_of_the_model_itself(self, model, arguments):
        assert_attention_of_the_model(tiny_encoder(model=model, **arguments))

    def test_tokens_are_those_of_the_untouched_model(self, model, arguments):
        assert_tokens_of_the_model(tiny_encoder(model=model, **arguments))


def fused_flags(model: nn.Module) -> list[bool]:
    return [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")]


def test_fused_attention_is_restored():
    encoder = tiny_encoder()
    model = encoder.model
    model.blocks[0].attn.fused_attn, model.blocks[1].attn.fused_attn = True, False  # restored to what it was, not always on
    with watched(model.blocks, encoder.layout, lambda *_: None, None):
        assert fused_flags(model) == [True, True]
    assert fused_flags(model) == [True, False]


def test_everything_is_restored_after_an_error():
    encoder = tiny_encoder()
    model = encoder.model
    model.blocks[0].attn.fused_attn = False

    def fail(block, attention):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), watched(model.blocks, encoder.layout, fail, None):
        model.forward_features(torch.randn(1, 3, 32, 32))
    assert not fused_flags(model)[0]
    model.forward_features(torch.randn(1, 3, 32, 32))  # no hook is left that would fail


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("vit_small_patch16_18x2_224", "ParallelThingsBlock"),  # two attentions beside each other
        ("cait_xxs24_224", "it attends 0 times"),  # with its own softmax
    ],
)
def test_blocks_that_hide_their_attention(model, why):
    if model.startswith("cait"):
        need_cait()
    encoder = tiny_encoder(model=model)
    message = rf"cannot see the attention of block 0 \({why}\); extract this encoder with --statistics none --no-maps"
    with pytest.raises(BeyondClsError, match=message):
        encoder(torch.randn(1, 3, 32, 32), [1], encoder.statistics)


def test_hidden_attention_does_not_hide_tokens():
    encoded = tiny_encoder(model="vit_small_patch16_18x2_224")(torch.randn(1, 3, 32, 32), [1])
    assert encoded.patch[1].shape == (1, 16, 32)


def test_a_block_without_attention_leaves_the_others_as_they_were():
    encoder = tiny_encoder()
    blocks = nn.Sequential(encoder.model.blocks[0], nn.Identity())
    blocks[0].attn.fused_attn = False
    with (
        pytest.raises(BeyondClsError, match=r"block 1 \(Identity\)"),
        watched(blocks, encoder.layout, lambda *_: None, None),
    ):
        pass
    assert not blocks[0].attn.fused_attn
    assert not blocks[0]._forward_hooks
    assert not blocks[0].attn._forward_hooks


def test_a_softmax_is_known_by_its_last_dimension_from_either_end():
    logits = torch.zeros(2, 3, 5, 5)
    for dim, expected in ((-1, True), (3, True), (-2, False), (2, False)):
        assert watch.is_softmax(torch.softmax, (logits, dim), {}) is expected
        assert watch.is_softmax(F.softmax, (logits,), {"dim": dim}) is expected
    assert not watch.is_softmax(torch.softmax, (logits[..., :4], -1), {})


@pytest.mark.parametrize("n_masks", [1, 4])
def test_a_mask_of_each_image_stays_with_it_where_some_images_are_computed_at_a_time(n_masks, monkeypatch):
    monkeypatch.setattr(watch, "CPU_NBYTES", 1)
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 2, 5, 8)
    mask = torch.randn(n_masks, 1, 5, 5)
    out, _ = watch.attend(TokenLayout(True, 1), query, key, value, mask, memory={})
    assert torch.allclose(out, F.scaled_dot_product_attention(query, key, value, mask), atol=1e-6)
