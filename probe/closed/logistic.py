"""Logistic regression with an L2 penalty, to convergence: what linear probing approximates with SGD."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from probe.closed.protocol import Closed, check_grid, select
from probe.closed.result import Result, edge_note, measured, notes_on
from probe.closed.scaling import Scaling
from probe.closed.vectors import Vectors, check_pair
from store import BeyondClsError


@dataclass(frozen=True)
class Logistic(Closed):
    """scikit-learn's LogisticRegression (L-BFGS, float64): softmax over the classes; one against the rest with several labels.

    C multiplies the summed loss, as in scikit-learn. It is selected on a hold-out of the training images, the smallest of the
    best; then the model is fitted again to all of them. Along the grid each fit starts from the one before. Scores are
    logits: with two classes ∓ half the log odds; -inf for a class that no training image has (+inf if all have it).

    Attributes:
        cs: the grid. Powers of ten over the range of DINOv2 (45 values from 1e-6 to 1e5; CLIP has 96 from 1e-6 to 1e6).
        standardise: divide by the standard deviation of the images that are fitted.
        share, seed: of the hold-out; DINOv2's is 10 % too.
        max_iter, tol: of L-BFGS; `tol` bounds the largest component of the gradient of the mean loss.

    Source: Radford et al. 2021 (arXiv 2103.00020, A.3); `log_regression.py` of DINOv2's code.
    """

    grid: ClassVar[str] = "cs"
    linear: ClassVar[bool] = True

    cs: tuple[float, ...] = tuple(10.0**power for power in range(-6, 6))
    standardise: bool = True
    share: float = 0.1
    seed: int = 0
    max_iter: int = 1000
    tol: float = 1e-6

    def __post_init__(self) -> None:
        check_grid("cs", self.cs)
        object.__setattr__(self, "cs", tuple(sorted(self.cs)))
        if self.max_iter < 1 or not self.tol > 0:
            raise BeyondClsError(f"max_iter is {self.max_iter} and tol {self.tol}, expected 1 or more and a positive number")

    def fit(self, training: Vectors, test: Vectors) -> Result:
        check_pair(training, test)
        notes: dict[str, None] = {}  # each once, in order

        def along_grid(learnt: Vectors, held_out: Vectors) -> Iterator[Tensor]:
            model = _Model(learnt, self, notes, "hold-out")
            return (model.fitted(c).scores(held_out.x) for c in self.cs)

        selection = select(self.cs, training, self.share, self.seed, along_grid)
        c = selection.best
        scores = _Model(training, self, notes, "all training images").fitted(c).scores(test.x)
        result_notes = (*notes, *edge_note("C", c, self.cs), *notes_on(training, test))
        return Result(scores, {"c": c}, selection, measured(scores, test), result_notes)


@dataclass
class _Model:
    """Estimators on one set of images; each fit starts from the result for the previous C."""

    training: Vectors
    options: Logistic
    notes: dict[str, None]
    where: str
    estimators: list[Any] = field(default_factory=list)  # one, or one a class with several labels

    def __post_init__(self) -> None:
        from sklearn.linear_model import LogisticRegression

        x = self.training.x.cpu()
        self.scaling = Scaling.from_vectors(x, self.options.standardise)
        # float64: on float32 the line search stalls in rounding before the gradient is small.
        self.x = self.scaling(x).numpy()
        labels = self.training.labels.cpu().numpy()
        self.targets = list((labels > 0).T) if self.training.multilabel else [labels]
        self.estimators = [
            LogisticRegression(max_iter=self.options.max_iter, tol=self.options.tol, warm_start=True) for _ in self.targets
        ]

    def fitted(self, c: float) -> "_Model":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for estimator, target in zip(self.estimators, self.targets, strict=True):
                if len(np.unique(target)) > 1:
                    estimator.set_params(C=c).fit(self.x, target)
        self._note(c, caught)
        return self

    def _note(self, c: float, caught: list[warnings.WarningMessage]) -> None:
        """Turn scikit-learn's convergence warnings into a note, and pass on all others."""
        from sklearn.exceptions import ConvergenceWarning

        if n := sum(issubclass(w.category, ConvergenceWarning) for w in caught):
            fits = f"{n} of {len(self.targets)} fits" if len(self.targets) > 1 else "the fit"
            reason = f"after max_iter = {self.options.max_iter}"
            self.notes[f"{fits} with C = {c:g} on {self.where} did not converge {reason}; raise max_iter or tol"] = None
        for warning in caught:
            if not issubclass(warning.category, ConvergenceWarning):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def scores(self, x: Tensor) -> Tensor:
        """Logits [N, K] float32."""
        scaled = self.scaling(x.cpu()).numpy()
        if self.training.multilabel:
            columns = [_logits(e, scaled, y) for e, y in zip(self.estimators, self.targets, strict=True)]
            return torch.from_numpy(np.stack(columns, 1)).float()
        (estimator,) = self.estimators
        logits = estimator.decision_function(scaled)
        if logits.ndim == 1:  # two classes: softmax of ∓ half the log odds gives their probabilities
            logits = np.stack([-logits / 2, logits / 2], 1)
        scores = np.full((len(x), self.training.n_classes), -np.inf)
        scores[:, estimator.classes_] = logits
        return torch.from_numpy(scores).float()


def _logits(estimator: Any, x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Log odds of one class; the limit for a class that no or every training image has."""
    if target.all() or not target.any():
        return np.full(len(x), np.inf if target.all() else -np.inf)
    return estimator.decision_function(x)
