"""The quickstart's ViT of 2.7 M parameters for 32 x 32 images; cards next to the weights say how they were trained."""

from typing import Any

from torch import nn

from extract.encoders.pretrained import JOINT, LABELS, MASKED, Pretrained, timm_model
from extract.encoders.weights import Content, State, unwrapped
from store import BeyondClsError

WEIGHTS = "quickstart/encoders"  # in the repository, where `dvc repro` runs
ARCHITECTURE = {"img_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 6, "num_heads": 6}
CIFAR10 = {  # mean and std of its training images
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2470, 0.2435, 0.2616),
    "crop_pct": 1.0,
    "interpolation": "bicubic",
}


def small_vit(model: str, **arguments: Any) -> nn.Module:
    """64 patch tokens and [cls], 192 wide, 6 blocks, 6 attention heads."""
    return timm_model("vit_tiny_patch16_224", **{**ARCHITECTURE, **arguments})


def with_classifier(content: Content) -> State:
    """Files of fine-tuning hold the classifier of [cls]."""
    state = unwrapped(content)
    if "head.weight" not in state:
        raise BeyondClsError(
            "the checkpoint has no `head.weight`: it is of an encoder before fine-tuning; load it as quickstart-mae"
        )
    return state


def _quickstart_vit(weights: str, **differing: Any) -> Pretrained:
    return Pretrained("quickstart-vit", weights, "MIT", make=small_vit, transform=CIFAR10, **differing)


ENCODERS = {
    "quickstart-mae": _quickstart_vit(f"{WEIGHTS}/mae.safetensors", family=MASKED, signs=()),
    "quickstart-mocov3": _quickstart_vit(f"{WEIGHTS}/mocov3.safetensors", family=JOINT, signs=()),
    # The MAE above, fine-tuned through [cls] as the paper's are.
    "quickstart-mae-ft": _quickstart_vit(f"{WEIGHTS}/mae-ft.safetensors", family=LABELS, signs=(), convert=with_classifier),
    # The untrained twin. params.yaml takes it from a file: MKL's erfinv has other last bits on the CPU of another maker.
    "quickstart-random": _quickstart_vit("random", seed=0),
}
