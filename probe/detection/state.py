"""The state of an unfinished training, so that a run that was killed goes on and ends with the same weights."""

import json
import time
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

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
