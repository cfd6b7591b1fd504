"""Training a detector; one that was killed goes on and ends with the same weights."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from probe.detection.detector import Detector
from probe.detection.recipe import DetectionRecipe
from probe.detection.targets import Target
from probe.subsets import draws_of
from probe.train import isolated_randomness
from store import BeyondClsError
from store.errors import first_line
from store.places.disk import replacing

EVERY_S = 60.0  # between two checkpoints


class TrainingState:
    """Where a training stands: epochs and steps that are done, sums of losses, the curve.

    There are no states of random generators: what is drawn depends on the step (`train_detector`).

    Args:
        file: of its checkpoint (`Unfinished.path_of`); None: nothing is written.
    """

    def __init__(self, file: Path | None = None):
        self.file = file
        self.epoch, self.step = 0, 0
        self.sums: dict[str, float] = {}
        self.curve: list[dict[str, float]] = []
        self._saved = time.monotonic()

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
        """Write a checkpoint, unless that was done less than `EVERY_S` ago.

        Raises:
            BeyondClsError: it cannot be written.
        """
        if self.file is None or time.monotonic() - self._saved < EVERY_S:
            return
        tensors = {f"detector.{name}": values for name, values in detector.state_dict().items()} | _moments(optimiser)
        plain = {"epoch": self.epoch, "step": self.step, "sums": self.sums, "curve": self.curve}
        try:
            content = {name: values.detach().cpu().contiguous() for name, values in tensors.items()}
            with replacing(self.file) as temporary:  # a kill leaves the old one or the new one
                save_file(content, temporary, {"state": json.dumps(plain)})
        except (OSError, SafetensorError) as error:
            raise BeyondClsError(
                f"cannot write the checkpoint {self.file} ({error}); make room there, or let us write there"
            ) from error
        self._saved = time.monotonic()

    def load(self, detector: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Restore detector and optimiser from the checkpoint, if there is one.

        Raises:
            BeyondClsError: the checkpoint is damaged.
        """
        if self.file is None or not self.file.is_file():
            return
        try:
            with safe_open(self.file, "pt") as file:
                plain = json.loads(file.metadata()["state"])
            tensors = load_file(self.file)
            prefix = "detector."
            parameters = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
            detector.load_state_dict(parameters, strict=True)
            _restore(optimiser, tensors)
            self.epoch, self.step, self.sums, self.curve = (plain[name] for name in ("epoch", "step", "sums", "curve"))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = first_line(error)
            raise BeyondClsError(
                f"the checkpoint {self.file} is damaged ({type(error).__name__}: {reason}); remove it to begin this seed anew"
            ) from error


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


MOMENTUM = 0.9  # of SGD


class Batches(Protocol):
    """What a detector is trained on: `DetectionBatches`, or tensors in memory."""

    def __len__(self) -> int: ...

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Float[Tensor, "B T D"], Sequence[Target]]]: ...


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
        for tokens, targets in batches.epoch(_drawn(epoch, seed, "order"), state.step):
            number = epoch * n_steps + state.step
            lr = recipe.lr_at(number, n_steps)
            losses = _step(detector, optimiser, tokens, targets, lr, recipe.clip, _drawn(number, seed, "samples"))
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
    tokens: Float[Tensor, "B T D"],
    targets: Sequence[Target],
    lr: float,
    clip: float | None,
    seed: int,
) -> dict[str, float]:
    """Take a step; returns the losses by name."""
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
