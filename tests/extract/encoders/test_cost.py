"""Operations of an encoder, against the closed form of a ViT."""

import torch
from torch import Tensor, nn

from extract.encoders.pretrained import timm_model
from extract.forward import cost_of
from tests.extract.tiny import TINY, tiny_encoder


def products(side: int, patch: int, width: int, depth: int) -> int:
    """Multiplications of a plain ViT with [cls]: patches, and in each block q, k, v, projection and MLP, then q·k and a·v."""
    n_patches = (side // patch) ** 2
    n = n_patches + 1
    return n_patches * 3 * patch**2 * width + depth * (n * width * 12 * width + 2 * n * n * width)


def test_a_vit_b():
    with torch.device("meta"):
        model = timm_model("vit_base_patch16_224")
    cost = cost_of(model, (3, 224, 224))
    assert cost.flops == 2 * products(224, 16, 768, 12) == 35_126_120_448  # 17.6 G products


def test_weights_are_neither_copied_nor_moved():
    encoder = tiny_encoder()
    before = {name: value.data_ptr() for name, value in encoder.model.state_dict().items()}
    sizes = (TINY[name] for name in ("img_size", "patch_size", "embed_dim", "depth"))
    cost = cost_of(encoder.model, encoder.config["input_size"])
    assert cost.flops == 2 * products(*sizes)
    after = {name: value.data_ptr() for name, value in encoder.model.state_dict().items() if value.device.type == "cpu"}
    assert after == before


class Hesitant(nn.Module):
    """Looks at values before it goes on."""

    def forward_features(self, images: Tensor) -> Tensor:
        return images if images.mean() > 0 else -images


def test_a_model_whose_steps_depend_on_values():
    assert cost_of(Hesitant(), (3, 8, 8)) is None


def test_bytes_that_a_vit_moves():
    """Each operation reads and writes what it needs of N x D numbers; attention keeps its logits on the chip."""
    encoder = tiny_encoder()
    cost = cost_of(encoder.model, encoder.config["input_size"])
    side, width, depth = TINY["img_size"], TINY["embed_dim"], TINY["depth"]
    n_patches = (side // TINY["patch_size"]) ** 2
    n = n_patches + 1
    # Two norms (in, out, two moments), qkv, attention, projection, MLP, GELU, two sums.
    block = 2 * (2 * n * width + 2 * n) + (4 + 4 + 2 + (1 + 4) + (4 + 4) + (4 + 1) + 2 * 3) * n * width
    patches = 3 * side**2 + n_patches * width
    with_cls, positions, norm = patches - 3 * side**2 + n * width, 2 * n * width, 2 * n * width + 2 * n
    assert cost.moved_nbytes == 2 * (patches + with_cls + positions + depth * block + norm)
    assert cost.weights_nbytes == 2 * sum(p.numel() for p in encoder.model.parameters())
