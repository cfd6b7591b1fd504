"""How a sample of a feature set differs from what the program computes now."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The value of an array that differs most, in units of what is allowed.

    Attributes:
        array: its name; or the name of the attribute that differs.
        ratio: of the difference to what is allowed; the two agree up to 1.
        image: its id.
        at: index of the value in the image's row; empty where it is the mean over the row that differs most.
        stored, computed: the two values; of a mean those of absolute values, and `difference` is the mean absolute difference.
    """

    array: str
    ratio: float
    difference: float
    allowed: float
    image: str = ""
    at: tuple[int, ...] = ()
    stored: float | str = ""
    computed: float | str = ""

    def __str__(self) -> str:
        if not self.image:
            return f"{self.array}: it is {self.stored}, the program now gives {self.computed}"
        where = f"at {list(self.at)}" if self.at else "on average (absolute values)"
        return (
            f"{self.array}: image {self.image!r} has {self.stored:.7g} {where}, the program now gives {self.computed:.7g} "
            f"({self.difference:.2g} apart, {self.allowed:.2g} allowed)"
        )


@dataclass(frozen=True)
class SampleCheck:
    """What comparing a sample gave.

    Attributes:
        n_sampled, n_images: images that were computed again, of all.
        tolerance: share of a value's size by which it may differ.
        worst: of each array, the largest ratio first.
    """

    n_sampled: int
    n_images: int
    tolerance: float
    worst: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        return all(difference.ratio <= 1 for difference in self.worst)

    @property
    def described(self) -> str:
        """`a sample of 64 of its 5,000 images agrees (at most 0.02 of what is allowed, in patch/block5/view0)`."""
        sample = f"a sample of {self.n_sampled:,} of its {self.n_images:,} images"
        if not self.worst:
            return f"{sample} has nothing to compare"
        if self.agrees:
            return f"{sample} agrees (at most {self.worst[0].ratio:.2g} of what is allowed, in {self.worst[0].array})"
        n = sum(difference.ratio > 1 for difference in self.worst)
        return f"{sample} differs in {n} of {len(self.worst)} arrays, most in {self.worst[0]}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = lambda x: x if not isinstance(x, float) else float(f"{x:.6g}") if np.isfinite(x) else str(x)  # noqa: E731
        worst = [{name: plain(value) for name, value in asdict(difference).items()} for difference in self.worst]
        return {"n_sampled": self.n_sampled, "n_images": self.n_images, "tolerance": self.tolerance, "arrays": worst}
