"""Masked autoencoding (MAE, arXiv 2111.06377): a light decoder predicts the normalised pixels of the masked patches."""

import torch
from jaxtyping import Float
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from quickstart.augment import random_resized_crop
from quickstart.vit import encode, gather, normalise, random_tokens


class MAE(nn.Module):
    """The encoder sees `1 - mask_ratio` of the patches and [cls]; the decoder sees all positions.

    The target of a patch is its pixels with zero mean and unit variance; the loss is the mean squared error over masked
    patches (Eq. 4 of the paper). [cls] passes through the decoder without contributing to the loss, as published.
    """

    def __init__(
        self,
        vit: VisionTransformer,
        mask_ratio: float = 0.75,
        decoder_dim: int = 96,
        decoder_depth: int = 2,
        decoder_heads: int = 3,
    ):
        super().__init__()
        self.encoder = vit
        self.n_tokens = vit.patch_embed.num_patches
        self.patch = vit.patch_embed.patch_size[0]
        self.kept = round(self.n_tokens * (1 - mask_ratio))
        self.project = nn.Linear(vit.embed_dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_dim))
        self.position = nn.Parameter(torch.randn(1, 1 + self.n_tokens, decoder_dim) * 0.02)
        self.decoder = nn.Sequential(
            *(Block(decoder_dim, decoder_heads) for _ in range(decoder_depth)), nn.LayerNorm(decoder_dim)
        )
        self.predict = nn.Linear(decoder_dim, 3 * self.patch**2)
        nn.init.normal_(self.mask_token, std=0.02)

    def targets(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B T P"]:
        p = self.patch
        pixels = images.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)  # [B, T, p*p*3]
        return (pixels - pixels.mean(-1, keepdim=True)) / (pixels.var(-1, keepdim=True) + 1e-6).sqrt()

    def loss(self, images: Float[Tensor, "B 3 H W"], generator: torch.Generator, progress: float) -> Float[Tensor, ""]:
        """Of images in 0...1; one random crop of each. `progress` (0...1) is unused here."""
        images = normalise(random_resized_crop(images, generator, size=images.shape[-1]))
        order = random_tokens(len(images), self.n_tokens, self.n_tokens, generator).to(images.device)
        seen, masked = order[:, : self.kept], order[:, self.kept :]
        tokens = self.project(encode(self.encoder, images, seen))
        place = self.position[:, 1:].expand(len(images), -1, -1)
        visible = tokens[:, 1:] + gather(place, seen)
        hidden = self.mask_token + gather(place, masked)
        # Attention is invariant to order, so the masked patches simply come last.
        decoded = self.decoder(torch.cat([tokens[:, :1] + self.position[:, :1], visible, hidden], 1))
        predicted = self.predict(decoded[:, 1 + self.kept :])
        return (predicted - gather(self.targets(images), masked)).square().mean()

    def after_step(self, progress: float) -> None:
        """Nothing follows an optimiser step."""
