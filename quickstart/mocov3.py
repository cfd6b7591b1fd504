"""Joint embedding by contrast (MoCo v3, arXiv 2104.02057): [cls] of one crop finds the other crop of its image in the batch."""

import copy
import math
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from quickstart.augment import colour_jitter, random_resized_crop
from quickstart.vit import encode, normalise, random_tokens


def multilayer_perceptron(widths: list[int], last: nn.Module) -> nn.Sequential:
    """Linear layers without bias between `widths`, batch normalisation and ReLU between them, and `last` at the end."""
    layers: list[nn.Module] = []
    for wide, next_wide in pairwise(widths[:-1]):
        layers += [nn.Linear(wide, next_wide, bias=False), nn.BatchNorm1d(next_wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1], bias=False), last)


class MoCoV3(nn.Module):
    """Queries and keys are projections of [cls] of two crops; the encoder of keys is a moving average of that of queries.

    As published: projection of three layers, prediction of two, batch normalisation after each layer, symmetric loss, other
    images of the batch as negatives, and a patch embedding that stays as it was drawn. Adapted to 32 x 32 pixels and to
    hours on a CPU: narrower heads, crops of at least a quarter of the image, no blur, and of each crop only `query_tokens`
    or `key_tokens` random patches go through the encoder (as MSN, arXiv 2204.07141, drops them); None keeps all.
    """

    def __init__(
        self,
        vit: VisionTransformer,
        query_tokens: int | None = 16,
        key_tokens: int | None = 16,
        temperature: float = 0.2,
        momentum: float = 0.95,
        hidden: int = 1024,
        out: int = 128,
    ):
        super().__init__()
        self.query_tokens, self.key_tokens = query_tokens, key_tokens
        self.temperature, self.momentum = temperature, momentum
        vit.patch_embed.requires_grad_(False)
        projection = multilayer_perceptron([vit.embed_dim, hidden, hidden, out], nn.BatchNorm1d(out, affine=False))
        self.query = nn.ModuleDict({"vit": vit, "projection": projection})
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.prediction = multilayer_perceptron([out, hidden, out], nn.BatchNorm1d(out, affine=False))

    @property
    def encoder(self) -> VisionTransformer:
        """What is exported: the encoder of queries, as in the publication."""
        return cast(VisionTransformer, self.query["vit"])

    def project(
        self, branch: nn.ModuleDict, crops: Float[Tensor, "B 3 H W"], kept: int | None, generator: torch.Generator
    ) -> Float[Tensor, "B P"]:
        vit = cast(VisionTransformer, branch["vit"])
        n_tokens = vit.patch_embed.num_patches
        positions = None if kept is None else random_tokens(len(crops), n_tokens, kept, generator).to(crops.device)
        return branch["projection"](encode(vit, crops, positions)[:, 0])

    def contrast(self, queries: Float[Tensor, "B P"], keys: Float[Tensor, "B P"]) -> Float[Tensor, ""]:
        """Cross-entropy of identifying the key of each query among those of the batch, times 2 temperature (Algorithm 1)."""
        similarity = F.linear(F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)) / self.temperature
        matching_key = torch.arange(len(queries), device=queries.device)
        return 2 * self.temperature * F.cross_entropy(similarity, matching_key)

    def loss(self, images: Float[Tensor, "B 3 H W"], generator: torch.Generator, progress: float) -> Float[Tensor, ""]:
        """Of images in 0...1: the sum of both directions; 4 temperature log(B) by chance. `progress` (0...1) is unused here."""
        size = images.shape[-1]
        crops = [
            normalise(colour_jitter(random_resized_crop(images, generator, size, scale=(0.25, 1)), generator)) for _ in range(2)
        ]
        with torch.no_grad():
            keys = [self.project(self.key, crop, self.key_tokens, generator) for crop in crops]
        queries = [self.prediction(self.project(self.query, crop, self.query_tokens, generator)) for crop in crops]
        return self.contrast(queries[0], keys[1]) + self.contrast(queries[1], keys[0])

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the encoder of keys; its momentum rises to 1 by half a cosine while `progress` goes from 0 to 1."""
        momentum = 1 - (1 - self.momentum) * (math.cos(math.pi * progress) + 1) / 2
        for theirs, ours in zip(self.key.parameters(), self.query.parameters(), strict=True):
            theirs.lerp_(ours, 1 - momentum)
