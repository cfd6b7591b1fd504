"""Logistic regression to convergence over blocks of patches, with many penalties at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probe.cores import cores

Blocks = Callable[[], Iterable[tuple[Float[Tensor, "_n D"], Int[Tensor, "_"]]]]
MEMORY = 20  # steps that L-BFGS remembers
SLOPE, ROUNDING = 1e-4, 1e-9  # a step has to gain this share of what the slope promises; losses are exact to this share
# Of a logit below the highest: what is less likely changes no sum, but its denormal numbers take 10 times as long.
LEAST = -60.0
ROWS = 1024  # of a block that a core computes at once


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model of each penalty.

    Attributes:
        weight, bias: logits are x · weight + bias.
        loss: C · summed cross-entropy + ½ |weight|².
        n_passes: over the patches.
        converged: whether each model is at its minimum, as far as float32 shows.
    """

    weight: Float[Tensor, "M D K"]
    bias: Float[Tensor, "M K"]
    loss: Float[Tensor, "M"]
    n_passes: int
    converged: tuple[bool, ...]


def fit(
    blocks: Blocks,
    n: int,
    n_classes: int,
    cs: Sequence[float],
    *,
    tolerance: float = 1e-8,
    max_passes: int = 1000,
    progress: Callable[[int], None] = lambda n: None,
) -> Fitted:
    """Minimise C · Σ cross-entropy + ½ |weight|² for each C: scikit-learn's LogisticRegression, with softmax.

    L-BFGS, preconditioned in the basis of the principal components by the curvature that the penalty and patches of average
    certainty would have. Models of all penalties take their steps in the same passes, so that each patch is read once for all
    of them. Products are in the type of the tokens, sums over blocks and everything else float64.

    Args:
        blocks: called for each pass; tokens (float32 or float64, centred) and classes, all of which are present.
        n: number of patches.
        tolerance: of a model, at convergence: half its gradient times its step, as a share of its loss.
        progress: called with 1 after each pass.
    """
    values, vectors = _principal_components(blocks, n)
    models = [_Model(len(values), n_classes, c * n, values) for c in cs]
    n_passes = 1
    while active := [model for model in models if not model.done]:
        if n_passes >= max_passes:
            break
        weights = torch.stack([vectors @ model.trial[:-1] for model in active])  # [M, D, K]
        biases = torch.stack([model.trial[-1] for model in active])
        losses, gradients, of_biases = _evaluate(blocks, weights, biases)
        for model, loss, gradient, of_bias in zip(active, losses, gradients, of_biases, strict=True):
            model.take(float(loss) / n, torch.cat([vectors.T @ gradient, of_bias[None]]) / n, tolerance)
        n_passes += 1
        progress(1)
    weight = torch.stack([vectors @ model.best[:-1] for model in models])
    bias = torch.stack([model.best[-1] for model in models])
    loss = torch.tensor([model.loss * model.c_total for model in models], dtype=torch.float64)
    return Fitted(weight, bias, loss, n_passes, tuple(model.done for model in models))


def _principal_components(blocks: Blocks, n: int) -> tuple[Float[Tensor, "R"], Float[Tensor, "D R"]]:
    """Variance along each principal component that the tokens have any of, and these components, in columns; float64."""
    total: Tensor | None = None
    for x, _ in blocks():
        square = (x.T @ x).double()
        total = square if total is None else total + square
    assert total is not None
    values, vectors = torch.linalg.eigh(total.cpu() / n)
    varies = values > 1e-14 * values[-1]  # along the others weights stay 0
    return values[varies].to(total.device), vectors[:, varies].to(total.device)


def _evaluate(
    blocks: Blocks, weights: Float[Tensor, "M D K"], biases: Float[Tensor, "M K"]
) -> tuple[Float[Tensor, "M"], Float[Tensor, "M D K"], Float[Tensor, "M K"]]:
    """Summed cross-entropy of each model, and its gradients; float64."""
    m, dim, k = weights.shape
    side_by_side = weights.movedim(0, 1).reshape(dim, m * k).contiguous()
    losses = torch.zeros(m, dtype=torch.float64, device=weights.device)
    gradient = torch.zeros(dim, m * k, dtype=torch.float64, device=weights.device)
    of_bias = torch.zeros(m, k, dtype=torch.float64, device=weights.device)
    with cores(weights.device) as on_all:
        for x, y in blocks():
            parts, sums = list(zip(x.split(ROWS), y.split(ROWS), strict=True)), dict[int, tuple[Tensor, Tensor, Tensor]]()

            def evaluate(number: int, parts: list = parts, sums: dict = sums) -> None:
                x, y = parts[number]
                sums[number] = _evaluate_part(x, y, side_by_side, biases)

            on_all(evaluate, range(len(parts)))
            for loss, product, total in (sums[number] for number in range(len(parts))):  # in their order, whichever came first
                losses, gradient, of_bias = losses + loss, gradient + product, of_bias + total
    return losses, gradient.view(dim, m, k).movedim(1, 0), of_bias


def _evaluate_part(x: Tensor, y: Tensor, side_by_side: Tensor, biases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, k = biases.shape
    logits = torch.addmm(biases.flatten().to(x.dtype), x, side_by_side.to(x.dtype)).view(len(x), m, k)
    logits -= logits.amax(2, keepdim=True)
    logits.clamp_(min=LEAST)
    index = y[:, None, None].expand(-1, m, 1)
    at_label = logits.gather(2, index)[..., 0]
    total = logits.exp_().sum(2)
    loss = (total.log() - at_label).sum(0, dtype=torch.float64)
    logits /= total[..., None]
    logits.scatter_add_(2, index, logits.new_full((1, 1, 1), -1.0).expand(index.shape))
    return loss, x.T @ logits.view(len(x), m * k), logits.sum(0, dtype=torch.float64)


@dataclass(eq=False)
class _Model:
    """One model on its way: mean loss (with its share of the penalty) and gradient, in the basis of the principal components.

    Attributes:
        c_total: C times the number of patches.
        trial: parameters whose loss is wanted next, [D + 1, K], the bias last.
    """

    dim: int
    n_classes: int
    c_total: float
    variances: Float[Tensor, "D"]
    done: bool = False
    loss: float = float("inf")
    trial: Tensor = field(init=False)
    best: Tensor = field(init=False)
    _gradient: Tensor | None = None
    _direction: Tensor | None = None
    _step: float = 1.0
    _n_failed: int = 0
    _pairs: list[tuple[Tensor, Tensor, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trial = torch.zeros(self.dim + 1, self.n_classes, dtype=torch.float64, device=self.variances.device)
        self.best = self.trial
        certainty = 1 / (2 * self.n_classes)  # p (1 - p) of a class, on average
        curvature = torch.cat([self.variances, self.variances.new_ones(1)]) * certainty
        curvature[:-1] += 1 / self.c_total
        self._curvature = curvature[:, None]

    def take(self, loss: float, gradient: Tensor, tolerance: float) -> None:
        """The loss and gradient of `trial`, without the penalty: the next trial follows, or a shorter step to this one."""
        loss += 0.5 * float(self.trial[:-1].square().sum()) / self.c_total
        gradient = gradient.clone()
        gradient[:-1] += self.trial[:-1] / self.c_total
        if self._gradient is not None and self._direction is not None:
            slope = float((self._gradient * self._direction).sum())
            if not loss <= self.loss + SLOPE * self._step * slope + ROUNDING * abs(self.loss):
                self._shorten(loss, slope)
                return
            moved, changed = self.trial - self.best, gradient - self._gradient
            curvature = float((moved * changed).sum())
            if curvature > 1e-12 * float(moved.square().sum()):
                self._pairs = [*self._pairs[1 - MEMORY :], (moved, changed, curvature)]
        self.loss, self.best, self._gradient, self._n_failed, self._step = loss, self.trial, gradient, 0, 1.0
        self._direction = -self._preconditioned(gradient)
        promise = -0.5 * float((gradient * self._direction).sum())
        if promise <= tolerance * abs(loss):
            self.done = True
            return
        self.trial = self.best + self._direction

    def _shorten(self, loss: float, slope: float) -> None:
        """Try a shorter step: to the minimum of the parabola through what is known. Forget the past if that does not help."""
        assert self._gradient is not None
        assert self._direction is not None
        excess = loss - self.loss - self._step * slope
        parabola = -slope * self._step**2 / (2 * excess) if excess > 0 and loss < float("inf") else 0.0
        self._step = min(0.5 * self._step, max(0.1 * self._step, parabola))
        self._n_failed += 1
        if self._n_failed >= 8:
            if not self._pairs:  # straight downhill does not help either: this is the minimum, to rounding
                self.done = True
                return
            self._pairs, self._n_failed, self._step = [], 0, 1.0
            self._direction = -self._preconditioned(self._gradient)
        self.trial = self.best + self._step * self._direction

    def _preconditioned(self, gradient: Tensor) -> Tensor:
        """The inverse Hessian times the gradient, as L-BFGS estimates it."""
        q, shares = gradient.clone(), []
        for moved, changed, curvature in reversed(self._pairs):
            shares.append(float((moved * q).sum()) / curvature)
            q -= shares[-1] * changed
        q /= self._curvature
        if self._pairs:
            _, changed, curvature = self._pairs[-1]
            q *= curvature / float((changed.square() / self._curvature).sum())
        for (moved, changed, curvature), share in zip(self._pairs, reversed(shares), strict=True):
            q += (share - float((changed * q).sum()) / curvature) * moved
        return q


def stored_blocks(
    x: Float[Tensor, "n D"], y: Int[Tensor, "n"], size: int
) -> Iterator[tuple[Float[Tensor, "_n D"], Int[Tensor, "_"]]]:
    """Blocks of patches that are in memory."""
    yield from zip(x.split(size), y.split(size), strict=True)
