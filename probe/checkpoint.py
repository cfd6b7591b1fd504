"""The state of an unfinished pass, so that a run that was killed can go on and ends with the same weights."""

import contextlib
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from probe.grid import Member
from probe.train import Family
from store import BeyondClsError
from store.errors import first_line
from store.places.disk import partials_of, replacing

EVERY_S = 60.0  # between two checkpoints


class Stopped(Exception):
    """Training has stopped after an epoch, as it was asked to; its state is saved, and the same request goes on."""


class Unfinished:
    """The checkpoints of a run, in a folder where those of other runs with the same results may be.

    They stay until the results of all passes are written.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._own: set[Path] = set()

    @classmethod
    def beside(cls, out: Path) -> "Unfinished":
        """Those of a run that writes its results to `out`."""
        return cls(out.parent / ".unfinished" / out.name)

    def path_of(self, described: Any, suffix: str = "") -> Path:
        """Where a checkpoint of this run is, or is going to be.

        Args:
            described: everything that the result depends on: a checkpoint of anything else has another name.
        """
        path = self.folder / (xxhash.xxh3_128_hexdigest(json.dumps(described, sort_keys=True).encode()) + suffix)
        self._own.add(path)
        return path

    def remove(self) -> None:
        """Remove the checkpoints of this run: the results are written. Those of others stay."""
        for path in (left for own in self._own for left in (own, *partials_of(own))):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other runs go on, or the folder never existed
            self.folder.rmdir()
            self.folder.parent.rmdir()


class Checkpoint:
    """State of the families of one pass.

    Args:
        folder: its own (`Unfinished.path_of`).
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._saved = time.monotonic()

    def save(self, families: Sequence[Family], epoch: int, force: bool = False) -> None:
        """Save the state of the families after an epoch, unless that was done less than `EVERY_S` ago.

        Raises:
            BeyondClsError: it cannot be written.
        """
        if not force and time.monotonic() - self._saved < EVERY_S:
            return
        tensors: dict[str, Tensor] = {}
        described = []
        for number, family in enumerate(families):
            assert family.optimiser is not None
            state = family.stack.state() | {f"optimiser.{n}": v for n, v in family.optimiser.state.items()}
            tensors |= {f"{number}.{name}": values.detach().cpu().contiguous() for name, values in state.items()}
            lost = [[*_plain(member), note] for member, note in family.lost.items()]
            described.append({"members": [_plain(m) for m in family.names], "curves": family.curves, "lost": lost})
        try:
            with replacing(self._file) as temporary:  # both parts in one file: a kill leaves the old one or the new one
                save_file(tensors, temporary, {"state": json.dumps({"epoch": epoch, "families": described})})
        except (OSError, SafetensorError) as error:
            raise BeyondClsError(
                f"cannot write the checkpoint {self._file} ({error}); make room there, or let us write there"
            ) from error
        self._saved = time.monotonic()

    def load(self, families: Sequence[Family]) -> int:
        """Restore the families from the last checkpoint.

        Returns:
            The number of epochs that are done, 0 without a checkpoint.

        Raises:
            BeyondClsError: the checkpoint is damaged.
        """
        if not self._file.is_file():
            return 0
        try:
            with safe_open(self._file, "pt") as file:
                state = json.loads(file.metadata()["state"])
            tensors = load_file(self._file)
            for number, (family, described) in enumerate(zip(families, state["families"], strict=True)):
                members = [Member(*values) for values in described["members"]]
                family.keep([family.names.index(member) for member in members])
                family.curves = described["curves"]
                family.lost = {Member(*values[:-1]): values[-1] for values in described["lost"]}
                prefix = f"{number}."
                family_tensors = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
                family.stack.load(family_tensors)
                assert family.optimiser is not None
                for name, values in family.optimiser.state.items():
                    values.copy_(family_tensors[f"optimiser.{name}"])
            return int(state["epoch"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = first_line(error)
            raise BeyondClsError(
                f"the checkpoint {self._file} is damaged ({type(error).__name__}: {reason}); "
                f"remove {self.folder} to begin this pass anew"
            ) from error

    @property
    def _file(self) -> Path:
        return self.folder / "checkpoint.safetensors"


def _plain(member: Member) -> list[Any]:
    return [member.head, member.base_lr, member.weight_decay, member.seed]
