"""Features at one scale, so that one penalty fits all."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scaling:
    """Subtract the mean and divide by the standard deviation of the vectors that it was made from; float64."""

    mean: Float[Tensor, "W"]
    std: Float[Tensor, "W"]

    @classmethod
    def from_vectors(cls, x: Float[Tensor, "N W"], standardise: bool) -> "Scaling":
        """Without `standardise` only the mean is subtracted, which changes no model with a free intercept."""
        x = x.double()
        return cls.of(x.mean(0), x.std(0, correction=0), standardise)

    @classmethod
    def of(cls, mean: Float[Tensor, "W"], std: Float[Tensor, "W"], standardise: bool) -> "Scaling":
        """From a mean and a standard deviation that were measured already; float64."""
        # A constant feature stays 0; dividing it by its rounding error would make it a large one.
        unchanged = (std <= 1e-12 * mean.abs()) if standardise else std >= 0
        return cls(mean, std.masked_fill(unchanged, 1.0))

    def __call__(self, x: Float[Tensor, "N W"]) -> Float[Tensor, "N W"]:
        return (x.double() - self.mean) / self.std
