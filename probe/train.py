"""Training one head on cached features."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probe.aggregators import make_aggregator
from probe.head import Head
from probe.metrics import METRICS, weight_entropy
from probe.optim import learning_rate, make_optimiser
from store import BeyondClsError, Loader


@dataclass(frozen=True)
class Recipe:
    """How a head is trained. Defaults follow the paper's protocol for small data sets: SGD at batch 1,024."""

    epochs: int = 90
    batch_size: int = 1024
    optimiser: str = "sgd"
    base_lr: float = 0.1  # of a batch of 256; scaled linearly with the batch size
    momentum: float = 0.9
    weight_decay: float = 0.0
    warmup_epochs: int = 10

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise BeyondClsError(f"{name} is {getattr(self, name)}, expected 1 or more")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise BeyondClsError(f"warmup_epochs is {self.warmup_epochs}, expected 0 to {self.epochs - 1} (below epochs)")

    @property
    def lr(self) -> float:
        """Peak learning rate."""
        return self.base_lr * self.batch_size / 256


@dataclass
class Trained:
    """A trained head and how it came about: `curve` has one entry per epoch, `result` the final measures in percent."""

    head: Head
    seed: int
    curve: list[dict[str, float]] = field(default_factory=list)
    result: dict[str, float] = field(default_factory=dict)
    weights: np.ndarray | None = None  # [N, T] of the test images, float32


def train(
    aggregator: str,
    options: dict[str, Any],
    dim: int,
    n_classes: int,
    training: Loader,
    test: Loader,
    recipe: Recipe,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Trained:
    """Train a head; the seed fixes its initialisation and the order of the images.

    Args:
        aggregator: a name in AGGREGATORS; `options` are its own.
        dim: width of the tokens.
        training: loader of the training set; `test`: of the test set, not shuffled.
        progress: called with 1 after each epoch.

    Raises:
        BeyondClsError: the loss is no longer finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head(make_aggregator(aggregator, dim, **options), dim, n_classes).to(training.device)
    trained = Trained(head, seed)
    optimiser = make_optimiser(recipe.optimiser, head.parameters(), recipe.lr, recipe.weight_decay, recipe.momentum)
    for epoch in range(recipe.epochs):
        head.train()
        total = torch.zeros((), device=training.device)
        seen = 0
        for step, batch in enumerate(training.epoch(_order(seed, epoch))):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(epoch + step / len(training), recipe.lr, recipe.epochs, recipe.warmup_epochs)
            if len(batch["label"]) < 2:
                continue  # batch normalisation has no variance of a single image, a rest of one is seen in other epochs
            logits, _ = head(batch)
            loss = F.cross_entropy(logits, batch["label"])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += loss.detach() * len(logits)
            seen += len(logits)
        mean = total.item() / seen
        if not np.isfinite(mean):
            raise BeyondClsError(f"loss is {mean} in epoch {epoch + 1} of seed {seed}; lower base_lr (now {recipe.base_lr})")
        measured = evaluate(head, test)[0]
        trained.curve.append({"epoch": epoch + 1, "loss": mean, **measured})
        if progress:
            progress(1)
    trained.result, weights = evaluate(head, test)
    trained.weights = None if weights is None else weights.numpy()
    return trained


def _order(seed: int, epoch: int) -> int:
    """Seed of an epoch's order; no two (seed, epoch) share one."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


@torch.inference_mode()
def evaluate(head: Head, test: Loader) -> tuple[dict[str, float], Tensor | None]:
    """Measures of METRICS in percent, the entropy of the weights in nats where there are any, and the weights [N, T]."""
    head.eval()
    logits, labels, weights = [], [], []
    for batch in test.epoch():
        out, w = head(batch)
        logits.append(out.cpu())
        labels.append(batch["label"].cpu())
        if w is not None:
            weights.append(w.cpu())
    scores, truth = torch.cat(logits), torch.cat(labels)
    result = {name: metric(scores, truth) for name, metric in METRICS.items()}
    if not weights:
        return result, None
    stacked = torch.cat(weights)
    return {**result, "entropy": weight_entropy(stacked).mean().item()}, stacked
