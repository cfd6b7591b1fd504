"""Attention as it is seen during a forward pass, in every kind of block that timm has for plain ViTs."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from extract.attention import watch, watched
from extract.attention.attention import TokenLayout
from store import BeyondClsError
from tests.extract.encoders.official import assert_is_the_model
from tests.extract.tiny import need_cait, tiny_encoder


# Beside those of docs/encoders.md, which encoders/test_current.py compares.
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"qk_norm": True}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("beit_base_patch16_224", {}),  # relative position bias
        ("vit_relpos_small_patch16_224", {}),  # by a network
    ],
)
def test_every_kind_of_block(model: str, arguments: dict[str, Any]):
    assert_is_the_model(tiny_encoder(model=model, **arguments))


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_restored(fails):
    """To what it was, not always on; and after an error no hook is left that would fail again."""
    encoder, seen = tiny_encoder(), []
    model = encoder.model
    model.blocks[0].attn.fused_attn, model.blocks[1].attn.fused_attn = True, False

    def on_attention(block, attention):
        seen.append([block.attn.fused_attn for block in model.blocks])
        if fails:
            raise RuntimeError("out of memory")

    try:
        with watched(model.blocks, encoder.layout, on_attention, None):
            model.forward_features(torch.randn(1, 3, 32, 32))
    except RuntimeError:
        assert fails
    model.forward_features(torch.randn(1, 3, 32, 32))
    assert seen == [[True, True]] * (1 if fails else 2)
    assert [block.attn.fused_attn for block in model.blocks] == [True, False]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("vit_small_patch16_18x2_224", "ParallelThingsBlock"),  # two attentions beside each other
        ("cait_xxs24_224", "it attends 0 times"),  # with its own softmax
    ],
)
def test_blocks_that_hide_their_attention(model, why):
    """It does not hide tokens, where nothing else is wrong."""
    if model.startswith("cait"):
        need_cait()
    encoder, images = tiny_encoder(model=model), torch.randn(1, 3, 32, 32)
    with pytest.raises(BeyondClsError, match=rf"the attention of block 0 \({why}\); .*--statistics none --no-maps"):
        encoder(images, [1], encoder.statistics)
    if "cait" not in model:
        assert encoder(images, [1]).patch[1].shape == (1, 16, 32)


def test_a_block_without_attention_leaves_the_others_as_they_were():
    encoder = tiny_encoder()
    blocks = nn.Sequential(encoder.model.blocks[0], nn.Identity())
    blocks[0].attn.fused_attn = False
    with pytest.raises(BeyondClsError, match=r"block 1 \(Identity\)"):
        watched(blocks, encoder.layout, lambda *_: None, None).__enter__()
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
