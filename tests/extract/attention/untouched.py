"""Models of timm as they are, of 4 x 4 patches, for comparison with what an encoder makes of them."""

import torch

from extract.attention import Attention, watched
from extract.encoders import Encoder
from tests.extract.tiny import sharpen


def attention_of(encoder: Encoder, images: torch.Tensor) -> dict[int, Attention]:
    """Of every block, as it is seen."""
    seen: dict[int, Attention] = {}
    with watched(encoder.model.blocks, encoder.layout, seen.__setitem__, None), torch.inference_mode():
        encoder.model.forward_features(images)
    return seen


def assert_attention_of_the_model(encoder: Encoder) -> None:
    """It is what timm's own unfused attention, softmax(q k / sqrt(d)), passes through `attn_drop`."""
    sharpen(encoder.model, 8)
    images = torch.randn(3, 3, 32, 32)
    seen = attention_of(encoder, images)
    assert sorted(seen) == [0, 1]
    n = encoder.layout.n_prefix + 16
    expected: list[torch.Tensor] = []
    for block in encoder.model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _module, _input, out: expected.append(out))
    with torch.inference_mode():
        encoder.model.forward_features(images)
    prefix = encoder.layout.n_prefix
    for block, attention in seen.items():
        exact = expected[block]
        assert exact.shape == (3, 2, n, n)
        assert exact.std() > 0.01, "uniform attention would hide a mistake"
        z, among = attention.z, exact[..., prefix:]
        assert torch.allclose(attention.to_itself / z, exact.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-5)
        assert torch.allclose(attention.to_cls / z, exact[..., 0], rtol=0, atol=1e-5)
        assert torch.allclose(attention.to_patches / z, among.sum(-1), rtol=0, atol=1e-5)
        p = among / among.sum(-1, keepdim=True)
        assert torch.allclose(attention.patch_entropy, torch.special.entr(p).sum(-1), rtol=0, atol=1e-5)
        centre = exact[:, :, prefix + 10, prefix:]  # of 4 x 4 patches, right below the middle
        assert torch.allclose(attention.maps()["centre"], centre, rtol=0, atol=1e-5)


def assert_tokens_of_the_model(encoder: Encoder) -> None:
    """Behind the final norm, where there is one, they are what timm's `forward_features` gives with fused attention."""
    images = torch.randn(2, 3, 32, 32)
    encoded = encoder(images, [1], encoder.statistics, maps=[1])
    tokens = [encoded.cls[1][:, None]] if encoder.layout.has_cls else []
    tokens += [encoded.registers[1]] if encoder.layout.n_registers else []
    norm = encoder.model.norm
    with torch.inference_mode():
        expected = encoder.model.forward_features(images)
        torch.testing.assert_close(norm(torch.cat([*tokens, encoded.patch[1]], 1)), expected, rtol=0, atol=1e-5)
