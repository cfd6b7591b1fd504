"""Training a detector; one that was killed goes on and ends with the same weights."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from probe.checkpoint import Checkpoint
from probe.detection.detector import Detector
from probe.detection.recipe import DetectionRecipe
from probe.subsets import draws_of
from probe.train import isolated_randomness
from store import BeyondClsError

MOMENTUM = 0.9  # of SGD


class TrainingState:
    """Where a training stands: epochs and steps that are done, sums of losses, the curve.

    There are no states of random generators: what is drawn depends on the step (`train_detector`).

    Args:
        checkpoint: None: nothing is written.
    """

    def __init__(self, checkpoint: Checkpoint | None = None):
        self.checkpoint = checkpoint
        self.epoch, self.step = 0, 0
        self.sums: dict[str, float] = {}
        self.curve: list[dict[str, float]] = []

    def add(self, losses: dict[str, float]) -> None:
        """Count a step."""
        self.step += 1
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in losses.items()}

    def end_epoch(self, lr: float) -> None:
        """Turn the sums into an entry of the curve."""
        means = {name: total / self.step for name, total in self.sums.items()}
        self.epoch, self.step, self.sums = self.epoch + 1, 0, {}
        self.curve.append({"epoch": self.epoch, "lr": lr, "loss": sum(means.values()), **means})

    def save(self, detector: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Write the checkpoint, unless that was done within a minute."""

        def state() -> tuple[dict[str, Tensor], Any]:
            tensors = {f"detector.{name}": values for name, values in detector.state_dict().items()} | _moments(optimiser)
            return tensors, {"epoch": self.epoch, "step": self.step, "sums": self.sums, "curve": self.curve}

        if self.checkpoint is not None:
            self.checkpoint.write(state)

    def load(self, detector: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Restore detector and optimiser from the checkpoint, if there is one."""

        def restore(tensors: dict[str, Tensor], plain: Any) -> None:
            prefix = "detector."
            parameters = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
            detector.load_state_dict(parameters, strict=True)
            _restore(optimiser, tensors)
            self.epoch, self.step, self.sums, self.curve = (plain[name] for name in ("epoch", "step", "sums", "curve"))

        if self.checkpoint is not None:
            self.checkpoint.read(restore)


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's running values by `optimiser.PARAMETER.NAME`."""
    state = optimiser.state_dict()["state"]
    return {
        f"optimiser.{number}.{name}": torch.as_tensor(values)
        for number, moments in state.items()
        for name, values in moments.items()
    }


def _restore(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    moments: dict[int, dict[str, Tensor]] = {}
    for name, values in tensors.items():
        if name.startswith("optimiser."):
            _, number, kind = name.split(".", 2)
            moments.setdefault(int(number), {})[kind] = values
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})


class Batches(Protocol):
    """What a detector is trained on: `detection_batches`, or tensors in memory; `patch` tokens and targets, `truths`."""

    def __len__(self) -> int: ...

    def epoch(self, seed: int, start: int = 0) -> Iterator[dict[str, Any]]: ...


def new_detector(make: Callable[[], Detector], seed: int) -> Detector:
    """A detector whose initial parameters depend on the seed alone."""
    with isolated_randomness(_drawn(0, seed, "start")):
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
    batches: Batches,
    recipe: DetectionRecipe,
    seed: int,
    *,
    state: TrainingState | None = None,
    after_step: Callable[[int], None] | None = None,
    after_epoch: Callable[[dict[str, float], bool], None] | None = None,
) -> list[dict[str, float]]:
    """Train in place; a run that is killed and goes on from its `state` ends with the same weights.

    The order of the images, and which anchors and regions torchvision draws for the loss of a step, depend on the seed and on
    the step alone.

    Args:
        after_step: called with the number of steps since its last call, those of the state included.
        after_epoch: called with the entry of the curve for each epoch, and whether it is one of the state, which come first.

    Returns:
        The curve, an entry an epoch: epoch, lr (of its last step), loss and its parts, means over the images' steps.

    Raises:
        BeyondClsError: the loss is no longer finite, or the state is damaged.
    """
    optimiser, n_steps = optimiser_of(detector, recipe), len(batches)
    state = state or TrainingState()
    state.load(detector, optimiser)
    if after_step and (done := state.epoch * n_steps + state.step):
        after_step(done)
    if after_epoch:
        for entry in state.curve:
            after_epoch(entry, True)
    detector.train()
    for epoch in range(state.epoch, recipe.epochs):
        for batch in batches.epoch(_drawn(epoch, seed, "order"), state.step):
            number = epoch * n_steps + state.step
            lr = recipe.lr_at(number, n_steps)
            losses = _step(detector, optimiser, batch, lr, recipe.clip, _drawn(number, seed, "samples"))
            total = sum(losses.values())
            if not math.isfinite(total):
                raise BeyondClsError(
                    f"the loss of seed {seed} is {total} in epoch {epoch + 1}, step {state.step + 1}, with lr {recipe.lr}; "
                    "give a lower --lr, more --warmup-steps, or --clip 1"
                )
            state.add(losses)
            if state.step == n_steps:
                state.end_epoch(lr)
                if after_epoch:
                    after_epoch(state.curve[-1], False)
            state.save(detector, optimiser)
            if after_step:
                after_step(1)
    detector.eval()
    return state.curve


def _step(
    detector: Detector,
    optimiser: torch.optim.Optimizer,
    batch: Mapping[str, Any],
    lr: float,
    clip: float | None,
    seed: int,
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


def _drawn(number: int, seed: int, purpose: str) -> int:
    """A seed for one purpose, of 63 bits."""
    return int(draws_of(np.array([number]), seed, purpose)[0] >> np.uint64(1))
