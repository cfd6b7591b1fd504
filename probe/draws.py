"""Random numbers that belong to a row, the same on every machine."""

import numpy as np
from jaxtyping import Int, UInt64

MASK = (1 << 64) - 1


def draws_of(rows: Int[np.ndarray, "n"], seed: int, purpose: str) -> UInt64[np.ndarray, "n"]:
    """A number for each row, [n] uint64, all different.

    SplitMix64 of seed, purpose and row: NumPy's generators may change with its version, and give numbers to places, not rows.

    Args:
        purpose: what is drawn; its first 8 letters tell it from other draws under the same seed.
    """
    start = _mixed(np.array([seed & MASK], np.uint64)) ^ np.frombuffer(purpose.encode()[:8].ljust(8), "<u8")
    return _mixed(_mixed(start) + rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mixed(z: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), a permutation of the 64-bit numbers."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
