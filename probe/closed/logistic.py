"""Logistic regression with an L2 penalty, to convergence: what linear probing approximates with SGD."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probe.closed.protocol import Closed, Result, Scaling, Vectors, check_grid, check_pair, edge_note, select
from probe.softmax_regression import fit, stored_blocks
from store import BeyondClsError

BLOCK = 8192  # images that are computed at once


@dataclass(frozen=True)
class Logistic(Closed):
    """The minimum of scikit-learn's LogisticRegression: softmax over the classes; one against the rest with several labels.

    C multiplies the summed loss, as in scikit-learn. It is selected on a hold-out of the training images, the smallest of the
    best; then the model is fitted again to all of them. The models of all C are fitted together, each vector is read once for
    them (`probe.softmax_regression`, in float64), where the vectors are. Scores are logits: with two
    classes ∓ half the log odds; -inf for a class that no training image has (+inf if all have it).

    Attributes:
        cs: the grid. Powers of ten over the range of DINOv2 (45 values from 1e-6 to 1e5; CLIP has 96 from 1e-6 to 1e6).
        standardise: divide by the standard deviation of the images that are fitted.
        share, seed: of the hold-out; DINOv2's is 10 % too.
        max_iter: passes over the images.
        tol: of a model, at convergence: half its gradient times its step, as a share of its loss.

    Source: Radford et al. 2021 (arXiv 2103.00020, A.3); `log_regression.py` of DINOv2's code.
    """

    grid: ClassVar[str] = "cs"
    linear: ClassVar[bool] = True

    cs: tuple[float, ...] = tuple(10.0**power for power in range(-6, 6))
    standardise: bool = True
    share: float = 0.1
    seed: int = 0
    max_iter: int = 1000
    tol: float = 1e-10

    def __post_init__(self) -> None:
        check_grid("cs", self.cs)
        object.__setattr__(self, "cs", tuple(sorted(self.cs)))
        if self.max_iter < 1 or not self.tol > 0:
            raise BeyondClsError(f"max_iter is {self.max_iter} and tol {self.tol}, expected 1 or more and a positive number")

    def fit(self, training: Vectors, test: Vectors) -> Result:
        check_pair(training, test)
        notes: dict[str, None] = {}  # each once, in order

        def along_grid(learnt: Vectors, held_out: Vectors) -> Iterator[Float[Tensor, "N K"]]:
            return iter(self._scores(learnt, held_out.x, self.cs, notes, "hold-out"))

        selection = select(self.cs, training, self.share, self.seed, along_grid)
        c = selection.best
        (scores,) = self._scores(training, test.x, (c,), notes, "all training images")
        return Result.of(training, test, scores, {"c": c}, selection, *notes, *edge_note("C", c, self.cs))

    def _scores(
        self, training: Vectors, x: Float[Tensor, "N W"], cs: Sequence[float], notes: dict[str, None], where: str
    ) -> Float[Tensor, "M N K"]:
        """Logits of `x` by the model of each C, float32; what did not converge is noted."""
        scaling = Scaling.from_vectors(training.x, self.standardise)
        learnt, scored = scaling(training.x), scaling(x)
        if not training.multilabel:
            present, numbers = training.labels.unique(return_inverse=True)
            scores = torch.full((len(cs), len(x), training.n_classes), -torch.inf, device=x.device)
            scores[..., present] = self._fit_and_score(learnt, numbers, scored, cs, notes, where).float()
            return scores
        columns = []
        for target in training.labels.T:
            if (here := target > 0).all() or not here.any():
                columns.append(torch.full((len(cs), len(x)), torch.inf if here.all() else -torch.inf, device=x.device))
            else:
                columns.append(2 * self._fit_and_score(learnt, here.long(), scored, cs, notes, where)[..., 1])
        return torch.stack(columns, -1).float()

    def _fit_and_score(
        self,
        learnt: Float[Tensor, "n W"],
        labels: Int[Tensor, "n"],
        scored: Float[Tensor, "N W"],
        cs: Sequence[float],
        notes: dict[str, None],
        where: str,
    ) -> Float[Tensor, "M N P"]:
        """Of P classes, all of which are among the labels."""
        n_classes = int(labels.max()) + 1
        # Of two classes scikit-learn penalises one vector, whose halves the two here are: twice the squared norm of both.
        penalties = [c / 2 for c in cs] if n_classes == 2 else list(cs)
        sizes = len(learnt), n_classes, penalties
        fitted = fit(lambda: stored_blocks(learnt, labels, BLOCK), *sizes, tolerance=self.tol, max_passes=self.max_iter)
        for c, converged in zip(cs, fitted.converged, strict=True):
            if not converged:
                text = f"the fit with C = {c:g} on {where} did not converge after max_iter = {self.max_iter}"
                notes[f"{text}; raise max_iter or tol"] = None
        return torch.stack([torch.addmm(b, scored, w) for w, b in zip(fitted.weight, fitted.bias, strict=True)])
