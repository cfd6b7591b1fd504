"""A trained classifier of patches: a module from tokens to logits on the grid, and its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probe.head import FinalNorm
from probe.modules import Kind, load_module, make_module, save_module

TASK = "segmentation"
PATCH_HEAD = Kind("head", "beyondcls segment", 1, TASK)


class PatchHead(nn.Module):
    """Tokens at one scale, then a 1x1 convolution: logits of each patch.

    Args:
        mean, scale: tokens become (token - mean) · scale: batch normalisation, or standardisation.
        weight, bias: of the convolution.
        grid: rows and columns of patches.
        final_norm: applied to the tokens first.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        mean: Float[Tensor, "D"],
        scale: Float[Tensor, "D"],
        weight: Float[Tensor, "K D"],
        bias: Float[Tensor, "K"],
        grid: tuple[int, int],
        final_norm: FinalNorm | None = None,
    ):
        super().__init__()
        for name, values in (("mean", mean), ("scale", scale), ("weight", weight), ("bias", bias)):
            self.register_buffer(name, values.detach().clone().float().contiguous())
        self.grid, self.final_norm = grid, final_norm

    @property
    def dim(self) -> int:
        """D."""
        return self.weight.shape[1]

    @property
    def n_classes(self) -> int:
        """K."""
        return self.weight.shape[0]

    def forward(self, features: Mapping[str, Tensor]) -> Float[Tensor, "B K rows columns"]:
        """Logits of the patches of B images, from `patch` tokens [B, T, D] before the encoder's final norm."""
        features = features if self.final_norm is None else self.final_norm(features)
        return self.of_tokens(features["patch"])

    def of_tokens(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B K rows columns"]:
        """Logits of tokens to which the final norm, if any, was applied."""
        logits = nn.functional.linear((tokens - self.mean) * self.scale, self.weight, self.bias)
        return logits.unflatten(1, self.grid).movedim(-1, 1)


def save_patch_head(path: Path, head: PatchHead, about: Mapping[str, Any]) -> None:
    """Write `path`.safetensors and `path`.json. `about`: encoder, block, classes, and how the head was trained."""
    sizes = {"dim": head.dim, "n_classes": head.n_classes, "grid": list(head.grid), "n_patches": head.grid[0] * head.grid[1]}
    save_module(path, PATCH_HEAD, head, {**sizes, **about})


def load_patch_head(path: str | Path) -> tuple[PatchHead, dict[str, Any]]:
    """A trained head in evaluation mode, and the content of its JSON file, given either file or their common stem.

    Raises:
        BeyondClsError: as `load_module`.
    """

    def build(described: dict[str, Any], parameters: Path) -> PatchHead:
        dim, n_classes, (rows, columns), eps = (described[k] for k in ("dim", "n_classes", "grid", "final_norm_eps"))

        def make() -> PatchHead:
            zeros = torch.zeros(dim), torch.zeros(dim), torch.zeros(n_classes, dim), torch.zeros(n_classes)
            return PatchHead(*zeros, (int(rows), int(columns)), FinalNorm.saved_with(parameters, dim, eps))

        return make_module(make, parameters, dim, n_classes)

    return load_module(path, PATCH_HEAD, build)
