"""Ridge regression onto ±1: a linear classifier in closed form."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from probe.closed.protocol import Closed, Result, Scaling, Selection, Vectors, check_grid, check_pair, edge_note, measured
from store import BeyondClsError


@dataclass(frozen=True)
class Ridge(Closed):
    """min ‖XW + b - Y‖² + α ‖W‖² with Y = 1 for the classes of an image and -1 for the others; b is not penalised.

    One decomposition serves all α. α is selected by leaving out each training image in turn, exactly and without fitting again:
    the prediction without image i is y_i - (y_i - ŷ_i) / (1 - H_ii), where Ŷ = H Y. The largest of the best is taken.
    Scaling is that of all training images, the one left out included. Scores are Ŷ of the test images; -inf for a class that no
    training image has, unless images have several labels. All is computed in float64, which needs 24 bytes for each number of X
    and a few [N, K].

    Attributes:
        alphas: the grid, in units of X'X (it grows with N).
        standardise: divide by the standard deviation of the training images.
        constant: a further channel with this value in all images, whose weights are the intercept, and are penalised as others
            are; 0: the intercept is free. big_vision has 100.

    Source: scikit-learn's RidgeClassifier; Rifkin & Lippert 2007 for leaving one out; `fewshot_lsr.py` of big_vision's code for
    the constant.
    """

    grid: ClassVar[str] = "alphas"
    linear: ClassVar[bool] = True

    alphas: tuple[float, ...] = tuple(10.0**power for power in range(-3, 7))
    standardise: bool = True
    constant: float = 0.0

    def __post_init__(self) -> None:
        check_grid("alphas", self.alphas)
        if not 0 <= self.constant < float("inf"):
            raise BeyondClsError(f"constant is {self.constant}, expected 0 or a positive number, such as 100")
        object.__setattr__(self, "alphas", tuple(sorted(self.alphas, reverse=True)))

    def fit(self, training: Vectors, test: Vectors) -> Result:
        check_pair(training, test)
        scaling = Scaling.from_vectors(training.x, self.standardise)
        one_hot = torch.nn.functional.one_hot
        y = ((training.labels > 0) if training.multilabel else one_hot(training.labels, training.n_classes)).double() * 2 - 1
        u, s, v = _decompose(self._with_constant(scaling(training.x)))
        uy, absent = u.T @ y, (y == -1).all(0)
        level = torch.zeros_like(y[0]) if self.constant else y.mean(0)
        selection = self._select(training, y, level, u, s, uy)
        alpha = selection.best
        weight = v @ ((s / (s**2 + alpha))[:, None] * uy)  # [W, K]
        scores = (self._with_constant(scaling(test.x)) @ weight + level).float().cpu()
        if not training.multilabel:  # their Ŷ is -1 and rounding, which could still be among the five largest
            scores[:, absent.cpu()] = -torch.inf
        return Result.of(training, test, scores, {"alpha": alpha}, selection, *edge_note("alpha", alpha, self.alphas))

    def _with_constant(self, x: Float[Tensor, "N W"]) -> Float[Tensor, "N D"]:
        return torch.nn.functional.pad(x, (0, 1), value=self.constant) if self.constant else x

    def _select(self, training: Vectors, y: Tensor, level: Tensor, u: Tensor, s: Tensor, uy: Tensor) -> Selection:
        if len(self.alphas) == 1:
            return Selection("nothing", candidates=self.alphas)
        measure, n, percent = training.criterion, len(training), []
        for alpha in self.alphas:
            shrinkage = s**2 / (s**2 + alpha)
            residual = y - level - u @ (shrinkage[:, None] * uy)
            leverage = (0 if self.constant else 1 / n) + (u**2) @ shrinkage
            percent.append(measured(y - residual / (1 - leverage)[:, None], training, (measure,))[measure])
        return Selection("leave-one-out", measure, n, self.alphas, tuple(percent))


def _decompose(x: Float[Tensor, "N W"]) -> tuple[Float[Tensor, "N r"], Float[Tensor, "r"], Float[Tensor, "W r"]]:
    """X = U diag(s) V', from the eigenvectors of the smaller of X'X and XX'; directions that are only rounding are dropped."""
    wide = x.shape[0] < x.shape[1]
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
    real = values > values[-1] * max(x.shape) * torch.finfo(x.dtype).eps
    s, vectors = values[real].sqrt(), vectors[:, real]
    if wide:
        return vectors, s, x.T @ vectors / s
    return x @ vectors / s, s, vectors
