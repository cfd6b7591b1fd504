"""Baselines that see no image: the most frequent class, and classes drawn as often as training patches have them."""

import numpy as np
from jaxtyping import Int, Int16


def most_frequent(counts: Int[np.ndarray, "K"], n: int, n_patches: int) -> Int16[np.ndarray, "n t"]:
    """The class with the most training patches, for every patch."""
    return np.full((n, n_patches), counts.argmax(), np.int16)


def drawn(counts: Int[np.ndarray, "K"], n: int, n_patches: int, seed: int = 0) -> Int16[np.ndarray, "n t"]:
    """Classes drawn by their share of the training patches, for each patch by itself."""
    generator = np.random.default_rng([seed, n, n_patches])
    return generator.choice(len(counts), size=(n, n_patches), p=counts / counts.sum()).astype(np.int16)
