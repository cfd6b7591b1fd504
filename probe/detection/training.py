"""Training a detector; one that was killed goes on and ends with the same weights."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probe.checkpoint import Checkpoint
from probe.detection.detector import Detector
from probe.detection.recipe import DetectionRecipe
from probe.subsets import draws_of
from probe.train import isolated_randomness
from probe.truth_batches import TruthBatches
from store import BeyondClsError

MOMENTUM = 0.9  # of SGD


@dataclass
class Done:
    """How far a training is: epochs, steps of the present one with the sums of their losses, and the curve.

    There are no states of random generators: what is drawn depends on the step (`train_detector`).
    """

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)


def _state(detector: nn.Module, optimiser: torch.optim.Optimizer, done: Done) -> tuple[dict[str, Tensor], Any]:
    moments = {
        f"optimiser.{number}.{name}": torch.as_tensor(values)
        for number, of_parameter in optimiser.state_dict()["state"].items()
        for name, values in of_parameter.items()
    }
    return {f"detector.{name}": values for name, values in detector.state_dict().items()} | moments, vars(done)


def _restore(detector: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], plain: Any) -> Done:
    moments: dict[int, dict[str, Tensor]] = {}
    for name, values in tensors.items():
        if name.startswith("optimiser."):
            _, number, kind = name.split(".", 2)
            moments.setdefault(int(number), {})[kind] = values
    parameters = {name.removeprefix("detector."): values for name, values in tensors.items() if name.startswith("detector.")}
    detector.load_state_dict(parameters, strict=True)
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    return Done(**plain)


def new_detector(make: Callable[[], Detector], seed: int) -> Detector:
    """A detector whose initial parameters depend on the seed alone."""
    with isolated_randomness(_derive_seed(0, seed, "start")):
        return make()


def optimiser_of(detector: Detector, recipe: DetectionRecipe) -> torch.optim.Optimizer:
    """The optimiser of a recipe; norms and biases have no weight decay."""
    parameters = list(detector.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, recipe.lr, MOMENTUM)
    return torch.optim.AdamW(groups, recipe.lr)


def train_detector(
    detector: Detector,
    batches: TruthBatches,
    recipe: DetectionRecipe,
    seed: int,
    *,
    checkpoint: Checkpoint | None = None,
    after_step: Callable[[int], None] = lambda n: None,
    after_epoch: Callable[[dict[str, float], bool], None] = lambda entry, is_replayed: None,
) -> list[dict[str, float]]:
    """Train in place; a run that is killed and goes on from its checkpoint ends with the same weights.

    The order of the images, and which anchors and regions torchvision draws for the loss of a step, depend on the seed and on
    the step alone.

    Args:
        checkpoint: None: nothing is written.
        after_step: called with the number of steps since its last call, those of the checkpoint included.
        after_epoch: called with the entry of the curve for each epoch, and whether it is of the checkpoint, whose come first.

    Returns:
        The curve, an entry an epoch: epoch, lr (of its last step), loss and its parts, means over the images' steps.

    Raises:
        BeyondClsError: the loss is no longer finite, or the checkpoint is damaged or cannot be written.
    """
    optimiser, n_steps = optimiser_of(detector, recipe), len(batches)
    done = (checkpoint and checkpoint.read(partial(_restore, detector, optimiser))) or Done()
    if n := done.epoch * n_steps + done.step:
        after_step(n)
    for entry in done.curve:
        after_epoch(entry, True)
    detector.train()
    for epoch in range(done.epoch, recipe.epochs):
        for batch in batches.epoch(_derive_seed(epoch, seed, "order"), done.step):
            number = epoch * n_steps + done.step
            lr = recipe.lr_at(number, n_steps)
            losses = _step(detector, optimiser, batch, lr, recipe.clip, _derive_seed(number, seed, "samples"))
            total = sum(losses.values())
            if not math.isfinite(total):
                raise BeyondClsError(
                    f"the loss of seed {seed} is {total} in epoch {epoch + 1}, step {done.step + 1}, with lr {recipe.lr}; "
                    "give a lower --lr, more --warmup-steps, or --clip 1"
                )
            done.step, done.sums = done.step + 1, {name: done.sums.get(name, 0.0) + value for name, value in losses.items()}
            if done.step == n_steps:
                means = {name: of_epoch / n_steps for name, of_epoch in done.sums.items()}
                done.curve.append({"epoch": epoch + 1, "lr": lr, "loss": sum(means.values()), **means})
                done.epoch, done.step, done.sums = epoch + 1, 0, {}
                after_epoch(done.curve[-1], False)
            if checkpoint is not None:
                checkpoint.write(lambda: _state(detector, optimiser, done))
            after_step(1)
    detector.eval()
    return done.curve


def _step(
    detector: Detector, optimiser: torch.optim.Optimizer, batch: Mapping[str, Any], lr: float, clip: float | None, seed: int
) -> dict[str, float]:
    """Take a step; returns the losses by name."""
    tokens = batch["patch"]
    targets = [{name: values.to(tokens.device) for name, values in target.items()} for target in batch["truths"]]
    with isolated_randomness(seed):
        losses = detector(tokens, targets)
    optimiser.zero_grad(set_to_none=True)
    torch.stack(list(losses.values())).sum().backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(detector.parameters(), clip)
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.step()
    return dict(zip(losses, torch.stack([loss.detach() for loss in losses.values()]).tolist(), strict=True))


def _derive_seed(number: int, seed: int, purpose: str) -> int:
    """A seed for one purpose, of 63 bits."""
    return int(draws_of(np.array([number]), seed, purpose)[0] >> np.uint64(1))
