"""A trained classifier of patches: a module from tokens to logits on the grid, and its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from probe.described import made
from probe.head import FinalNorm
from store import BeyondClsError
from store.errors import first_line, other_version

FORMAT_VERSION = 1
TASK = "segmentation"


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
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: values.cpu().contiguous() for name, values in head.state_dict().items()}, f"{path}.safetensors")
    described = {
        "format_version": FORMAT_VERSION,
        "task": TASK,
        "dim": head.dim,
        "n_classes": head.n_classes,
        "grid": list(head.grid),
        "n_patches": head.grid[0] * head.grid[1],
        "final_norm_eps": None if head.final_norm is None else head.final_norm.eps,
        **about,
    }
    Path(f"{path}.json").write_text(json.dumps(described, indent=1) + "\n")


def load_patch_head(path: str | Path) -> tuple[PatchHead, dict[str, Any]]:
    """A trained head in evaluation mode, and the content of its JSON file.

    Args:
        path: of either file, or their common stem.

    Raises:
        BeyondClsError: a file is missing, damaged or of another format version.
    """
    stem = _stem(path)
    for suffix in ("json", "safetensors"):
        if not stem.with_name(f"{stem.name}.{suffix}").is_file():
            raise BeyondClsError(f"there is no head {stem}.{suffix}; `beyondcls segment --out` writes linear/seed0.{suffix}")
    try:
        described = json.loads(stem.with_name(f"{stem.name}.json").read_text())
        task, version = described["task"], described["format_version"]
        if task != TASK:
            raise BeyondClsError(f"{stem}.json is of {task!r}, expected {TASK!r}; train it again: beyondcls segment")
        if version != FORMAT_VERSION:
            raise BeyondClsError(other_version(f"{stem}.json", version, FORMAT_VERSION, "train it again: beyondcls segment"))
        dim, n_classes, (rows, columns) = described["dim"], described["n_classes"], described["grid"]
        eps, parameters = described["final_norm_eps"], stem.with_name(f"{stem.name}.safetensors")

        def build() -> PatchHead:
            norm = FinalNorm.saved_with(parameters, dim, eps)
            zeros = torch.zeros(dim), torch.zeros(dim), torch.zeros(n_classes, dim), torch.zeros(n_classes)
            return PatchHead(*zeros, (int(rows), int(columns)), norm)

        head = made(build, parameters, dim, n_classes)
        head.load_state_dict(load_file(parameters), strict=True)
    except BeyondClsError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, SafetensorError) as error:
        reason = first_line(error)
        raise BeyondClsError(f"{stem} is not a readable head ({type(error).__name__}: {reason}); train it again") from error
    return head.eval(), described


def _stem(path: str | Path) -> Path:
    stem = Path(path)
    return stem.with_suffix("") if stem.suffix in (".json", ".safetensors") else stem
