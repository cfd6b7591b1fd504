"""The quickstart's ViT of 2.7 M parameters for 32 x 32 images; cards beside the weights say how they were trained."""

from pathlib import Path
from typing import Any

from torch import nn

from extract.encoders.timm_vit import timm_vit

WEIGHTS = Path("quickstart/encoders")  # in the repository, where `dvc repro` runs
ARCHITECTURE = {"img_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 6, "num_heads": 6}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images


def quickstart(
    objective: str, checkpoint: str | Path | None = None, random_seed: int | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """64 patch tokens and [cls], 192 wide, 6 blocks, 6 attention heads.

    `objective` names the weights: mae, dino, or random (the untrained twin, seed 0 unless given).
    """
    if objective == "random" and random_seed is None and checkpoint is None:
        random_seed = 0
    weights = checkpoint or WEIGHTS / f"{objective}.safetensors"
    vit, described = timm_vit("vit_tiny_patch16_224", None if random_seed is not None else weights, random_seed, ARCHITECTURE)
    size = {"input_size": (3, 32, 32), "crop_pct": 1.0, "interpolation": "bicubic", "mean": MEAN, "std": STD}
    vit.pretrained_cfg = {**vit.pretrained_cfg, **size}  # type: ignore[dict-item, assignment]
    return vit, described
