"""How well a small ViT's [cls] and average patch token separate the classes: k nearest neighbours, a linear classifier."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from probe.closed import Closed, Logistic, Neighbours, Vectors
from quickstart.cifar10 import CLASSES, Splits
from quickstart.vit import encode, normalise, tensors

Images: TypeAlias = UInt8[Tensor, "n 3 32 32"]

LABELLED = 10_000  # training images whose labels a card's accuracies use, a fifth: a minute or two on a CPU
PROTOCOLS: dict[str, Closed] = {
    "knn": Neighbours(ks=(20,)),
    "linear": Logistic(cs=(1e-2, 1e-1, 1.0)),
}


@torch.no_grad()
def pooled(vit: VisionTransformer, images: Images, batch: int = 100) -> dict[str, Float[Tensor, "n D"]]:
    """[cls] and the average patch token after the final norm, float32, on the CPU; uncropped images, all of their tokens."""
    training = vit.training
    vit.eval()
    tokens = [encode(vit, normalise(part.float() / 255)) for part in images.split(batch)]
    vit.train(training)
    return {
        "cls": torch.cat([t[:, 0].cpu() for t in tokens]),
        "average": torch.cat([t[:, 1:].mean(1).cpu() for t in tokens]),
    }


def accuracy(
    training: dict[str, Float[Tensor, "n D"]],
    training_labels: np.ndarray,
    test: dict[str, Float[Tensor, "m D"]],
    test_labels: np.ndarray,
    protocol: str,
) -> dict[str, float]:
    """Percent of test images that are classified correctly, by pooling.

    Args:
        protocol: "knn" (20 weighted neighbours by cosine, as DINO's) or "linear" (logistic regression on standardised vectors,
            its penalty selected on a tenth of the training images).
    """

    def percent_right(pooling: str) -> float:
        learnt = Vectors(training[pooling], torch.from_numpy(training_labels), len(CLASSES))
        asked = Vectors(test[pooling], torch.from_numpy(test_labels), len(CLASSES))
        return round(PROTOCOLS[protocol].fit(learnt, asked).metrics["top1"], 2)

    return {pooling: percent_right(pooling) for pooling in training}


def accuracies(encoders: Mapping[str, VisionTransformer], splits: Splits, device: torch.device) -> dict[str, Any]:
    """Percent of the test images by encoder, protocol and pooling, with the labels of the first LABELLED training images."""
    training, test = tensors(splits["train"][0][:LABELLED], device), tensors(splits["test"][0], device)
    by_encoder: dict[str, Any] = {}
    for name, vit in encoders.items():
        learnt, asked = pooled(vit, training), pooled(vit, test)
        by_encoder[name] = {p: accuracy(learnt, splits["train"][1][:LABELLED], asked, splits["test"][1], p) for p in PROTOCOLS}
    return by_encoder
