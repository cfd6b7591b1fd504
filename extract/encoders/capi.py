"""CAPI (Darcet et al. 2025, arXiv 2502.08769): ViTs that predict the cluster of masked patches from latent patches."""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.layers import Mlp
from torch import Tensor, nn

from extract.encoders.pretrained import MASKED, Pretrained
from extract.encoders.weights import unwrapped

EPS = 1e-5
RENAMED = {
    r"encoder\.blocks\.": "blocks.",
    r"\.residual([12])\.norm\.": r".norm\1.",
    r"\.residual1\.fn\.rope\.freqs": ".attn.frequencies",
    r"\.residual1\.fn\.": ".attn.",
    r"\.residual2\.fn\.": ".mlp.",
}


class PatchEmbed(nn.Conv2d):
    """A linear map of each square of p x p pixels."""

    def __init__(self, img_size: int, patch_size: int, dim: int):
        super().__init__(3, dim, patch_size, patch_size)
        self.img_size, self.patch_size = (img_size, img_size), (patch_size, patch_size)


class RotaryAttention(nn.Module):
    """Attention without biases, whose queries and keys are rotate by their positions."""

    frequencies: Tensor

    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        # They are in the files, though training does not change them.
        self.register_buffer("frequencies", initial_frequencies(dim // n_heads))

    def forward(self, x: Float[Tensor, "B N D"], positions: Float[Tensor, "N 2"]) -> Float[Tensor, "B N D"]:
        angles = positions @ self.frequencies  # [N, d]
        q, k, v = (
            proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )  # [B, H, N, d]
        mixed = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.norm1, self.attn = nn.RMSNorm(dim, EPS), RotaryAttention(dim, n_heads)
        self.norm2, self.mlp = nn.RMSNorm(dim, EPS), Mlp(dim, 4 * dim, bias=False)

    def forward(self, x: Float[Tensor, "B N D"], positions: Float[Tensor, "N 2"]) -> Float[Tensor, "B N D"]:
        x = x + self.attn(self.norm1(x), positions)
        return x + self.mlp(self.norm2(x))


class Capi(nn.Module):
    """The encoder: registers, then patches, whose positions enter by rotation alone. There is no [cls].

    Args:
        img_size: side of the square images, in pixels.
        n_registers: a multiple of 4, as they are placed around the image.
    """

    cls_token = None

    def __init__(
        self,
        img_size: int = 224,
        patch_size: int = 14,
        dim: int = 1024,
        depth: int = 24,
        n_heads: int = 16,
        n_registers: int = 16,
    ):
        super().__init__()
        self.num_prefix_tokens = n_registers
        self.patch_embed = PatchEmbed(img_size, patch_size, dim)
        self.registers = nn.Parameter(0.02 * torch.randn(1, n_registers, dim))
        self.blocks = nn.ModuleList(Block(dim, n_heads) for _ in range(depth))
        self.norm = nn.RMSNorm(dim, EPS, elementwise_affine=False)

    def set_input_size(self, img_size: tuple[int, int]) -> None:
        """Take images of another size; rotate positions need no change."""
        self.patch_embed.img_size = img_size

    def forward_features(self, images: Float[Tensor, "B 3 S S"]) -> Float[Tensor, "B N D"]:
        maps = self.patch_embed(images)  # [B, D, h, w]
        h, w = maps.shape[-2:]
        of_patches = torch.cartesian_prod(torch.linspace(0, 1, h), torch.linspace(0, 1, w))  # row and column, row by row
        positions = torch.cat([edge_positions(self.num_prefix_tokens), of_patches]).to(maps)
        x = torch.cat([self.registers.expand(len(maps), -1, -1), maps.flatten(2).transpose(1, 2)], 1)
        for block in self.blocks:
            x = block(x, positions)
        return self.norm(x)


def initial_frequencies(dim: int) -> Float[Tensor, "2 d"]:
    """Radians per image side: 2π · 7 to 2π · 0.0007, geometric; twice for rows in one half, twice for columns in the other."""
    geometric = 2 * math.pi * 7 * 10_000 ** -torch.linspace(0, 1, dim // 4)
    frequencies = torch.zeros(2, dim)
    frequencies[0, : dim // 2] = frequencies[1, dim // 2 :] = geometric.repeat(2)
    return frequencies


def edge_positions(n: int) -> Float[Tensor, "R 2"]:
    """Positions of registers: evenly around the image, from the upper left, down, right, up and left again."""
    side = torch.arange(n // 4) / (n // 4)
    zeros, ones = torch.zeros(n // 4), torch.ones(n // 4)
    rows = torch.cat([side, ones, 1 - side, zeros])
    columns = torch.cat([zeros, side, ones, 1 - side])
    return torch.stack([rows, columns], 1)


def rotate(x: Float[Tensor, "B H N d"], angles: Float[Tensor, "N d"]) -> Float[Tensor, "B H N d"]:
    """Channels i and i + d / 2 are a pair. The authors' code turns the first by its row, the second by its column."""
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def capi(model: str, **arguments: Any) -> nn.Module:
    """The model; there is one architecture."""
    return Capi(**arguments)


def _capi(images: str) -> Pretrained:
    """The official files hold `backbone.*`, an encoder and its predictor, and `head.*`, the clusters.

    No name shows on which images.
    """
    return Pretrained(
        "capi_vitl14",
        f"https://dl.fbaipublicfiles.com/capi/capi_vitl14_{images}.pth",
        "Apache-2.0",
        make=capi,
        convert=partial(unwrapped, prefixes=("backbone.",), dropped=("decoder.", "mask_token"), renamed=RENAMED),
        signs=(),
        family=MASKED,
    )


ENCODERS = {
    "capi-l14": _capi("in1k"),
    "capi-l14-in22k": _capi("i22k"),
    "capi-l14-lvd": _capi("lvd"),
    "capi-l14-p205": _capi("p205"),
}
