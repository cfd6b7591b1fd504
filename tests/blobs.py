"""Vectors with a class signal, for protocols that read one vector per image."""

import torch

from probe.closed import Vectors


def blobs(
    n: int = 120, n_classes: int = 4, dim: int = 6, *, seed: int = 0, spread: float = 1.0, offset: float = 3.0
) -> Vectors:
    """Normal vectors around one axis for each class; `offset` is the distance of the means from the common centre."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % n_classes
    x = spread * torch.randn(n, dim, generator=generator)
    x[torch.arange(n), labels] += offset
    return Vectors(x + 1, labels, n_classes)


def several(n: int = 120, n_classes: int = 4, dim: int = 6, *, seed: int = 0, offset: float = 3.0) -> Vectors:
    """As `blobs`, but each image has each class with probability 0.4."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, n_classes, generator=generator) < 0.4).to(torch.uint8)
    x = torch.randn(n, dim, generator=generator)
    x[:, :n_classes] += offset * labels
    return Vectors(x, labels, n_classes)
