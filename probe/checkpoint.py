"""The state of an unfinished pass, so that a run that was killed can go on and ends with the same weights."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from probe.evaluate import Batches
from probe.grid import Epoch, Member
from probe.ranks import broadcast_from_first, rank
from probe.recipe import Recipe
from probe.train import Course, Family, train
from store import BeyondClsError
from store.errors import first_line
from store.places.disk import partials_of, replacing

EVERY_S = 60.0  # between two checkpoints
T = TypeVar("T")


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

    def path_of(self, described: Any) -> Path:
        """Where a checkpoint of this run is, or is going to be.

        Args:
            described: everything that the result depends on: a checkpoint of anything else has another name.
        """
        digest = xxhash.xxh3_128_hexdigest(json.dumps(described, sort_keys=True).encode())
        self._own.add(path := self.folder / f"{digest}.safetensors")
        return path

    def remove(self) -> None:
        """Remove the checkpoints of this run: the results are written. Those of others stay."""
        for path in (left for own in self._own for left in (own, *partials_of(own))):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other runs go on, or the folder never existed
            self.folder.rmdir()
            self.folder.parent.rmdir()


class Checkpoint:
    """Tensors and plain values of an unfinished training, in one file: a kill leaves the old ones or the new ones.

    Args:
        file: its own (`Unfinished.path_of`).
    """

    def __init__(self, file: Path):
        self.file = file
        self._saved = time.monotonic()

    def write(self, state: Callable[[], tuple[Mapping[str, Tensor], Any]], force: bool = False) -> None:
        """Write tensors and plain values, unless that was done less than `EVERY_S` ago.

        Raises:
            BeyondClsError: they cannot be written.
        """
        if not force and time.monotonic() - self._saved < EVERY_S:
            return
        tensors, plain = state()
        content = {name: values.detach().cpu().contiguous() for name, values in tensors.items()}
        try:
            with replacing(self.file) as temporary:
                save_file(content, temporary, {"state": json.dumps(plain)})
        except (OSError, SafetensorError) as error:
            raise BeyondClsError(f"cannot write the checkpoint {self.file} ({error}); make room, or let us write") from error
        self._saved = time.monotonic()

    def read(self, restore: Callable[[dict[str, Tensor], Any], T]) -> T | None:
        """What `restore` makes of tensors and plain values; None without a checkpoint.

        Raises:
            BeyondClsError: the checkpoint is damaged.
        """
        if not self.file.is_file():
            return None
        try:
            with safe_open(self.file, "pt") as file:
                plain = json.loads(file.metadata()["state"])
            return restore(load_file(self.file), plain)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise BeyondClsError(f"the checkpoint {self.file} is damaged ({reason}); remove it to start over") from error

    def save(self, families: Sequence[Family], epoch: int, force: bool = False) -> None:
        """`write` the state of the families after an epoch."""

        def state() -> tuple[dict[str, Tensor], Any]:
            tensors, described = dict[str, Tensor](), []
            for number, family in enumerate(families):
                assert family.optimiser is not None
                of_family = family.stack.state() | {f"optimiser.{n}": v for n, v in family.optimiser.state.items()}
                tensors |= {f"{number}.{name}": values for name, values in of_family.items()}
                lost = [[*astuple(member), note] for member, note in family.lost.items()]
                described.append({"members": [astuple(m) for m in family.names], "curves": family.curves, "lost": lost})
            return tensors, {"epoch": epoch, "families": described}

        self.write(state, force)

    def load(self, families: Sequence[Family]) -> int:
        """Restore the families; returns the number of epochs that are done, 0 without a checkpoint."""

        def restore(tensors: dict[str, Tensor], plain: Any) -> int:
            for number, (family, described) in enumerate(zip(families, plain["families"], strict=True)):
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
            return int(plain["epoch"])

        return self.read(restore) or 0


def go_on(
    families: Sequence[Family],
    training: Batches,
    test: Batches | None,
    recipe: Recipe,
    order: int = 0,
    *,
    checkpoint: Checkpoint | None = None,
    stage: str = "training",
    say: Callable[[str], None] = lambda message: None,
    progress: Callable[[int], None] = lambda n: None,
    on_epoch: Callable[[Epoch], None] | None = None,
    stops: Callable[[], bool] = lambda: False,
    **options: Any,
) -> int:
    """`train`, from the last checkpoint on; returns how many epochs were done before.

    Args:
        families: whose optimisers are made, and whose names are members.
        stage, on_epoch: as of `Epoch`; called by the first of several processes.
        progress: called with the number of epochs since the last call, summed over members.
        stops: whether to stop after the present epoch, where its state can be saved; of several processes the first decides.
        options: of `train`.

    Raises:
        BeyondClsError: as `train`, or the checkpoint is damaged or cannot be written.
        Stopped: `stops` says so.
    """
    n_members, is_first = sum(len(family.names) for family in families), rank() == 0
    rates = Course.from_recipe(training.n_rows, recipe, 0).shares
    start = checkpoint.load(families) if checkpoint else 0
    if start:
        say(f"going on after {start} of {recipe.epochs} epochs")
        progress(start * n_members)

    def report(epoch: int, is_replayed: bool) -> None:
        if on_epoch is None or not is_first:
            return
        rate = recipe.peak(rates[epoch - 1][-1])
        for member, curve in ((m, c) for family in families for m, c in zip(family.names, family.curves, strict=True)):
            on_epoch(Epoch(member, stage, {"epoch": epoch, "lr": member.base_lr * rate, **curve[epoch - 1]}, is_replayed))

    for epoch in range(1, start + 1):
        report(epoch, True)

    def after_epoch(epoch: int) -> None:
        progress(n_members)
        report(epoch, False)
        is_last = epoch == recipe.epochs
        ends = checkpoint is not None and not is_last and broadcast_from_first(stops())
        if checkpoint and is_first:
            # The last epoch is saved too, so that a run that goes on skips this pass on its way to the one that was killed.
            checkpoint.save(families, epoch, force=is_last or ends)
        if ends:
            raise Stopped

    train(families, training, test, recipe, order, start=start, after_epoch=after_epoch, warn=say, **options)
    return start
