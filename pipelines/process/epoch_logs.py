"""Logs of what is measured in each epoch, where people look: a table, TensorBoard, Weights & Biases."""

import csv
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar

from probe.grid import Epoch
from store import BeyondClsError
from store.errors import unknown
from store.places.disk import make_folder, open_own, replacing

FOLDER = "training_logs"  # in the folder of a head's results; nothing that DVC keeps (.dvcignore)


class Log(ABC):
    """The log of one head, from its first epoch on.

    Args:
        folder: for logs of this head; there may be those of earlier runs.
        name: of the head's results, e.g. probes/cifar10/mae-b16/abmilp.
        about: plain values that describe how it is trained.
        goes_on: whether the run goes on from an earlier one, with whose epochs `write` is called first; else what that wrote is
            replaced.
    """

    package: ClassVar[str] = ""  # that it needs, and the extra that brings it

    @abstractmethod
    def __init__(self, folder: Path, name: str, about: Mapping[str, Any], goes_on: bool): ...

    @abstractmethod
    def write(self, epoch: Epoch) -> None:
        """Write an epoch of a member, so that it can be seen while the next one trains."""

    def close(self) -> None:  # noqa: B027, most have nothing open
        """Finish the log."""


class Csv(Log):
    """selection.csv and training.csv: a row for each epoch of each member, as in curves.csv, with its setting and rate."""

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any], goes_on: bool):
        self._folder = folder
        self._files: dict[str, IO[str]] = {}
        for stage in ("selection", "training"):
            (folder / f"{stage}.csv").unlink(missing_ok=True)

    def write(self, epoch: Epoch) -> None:
        member = epoch.member
        setting = {"seed": member.seed, "base_lr": member.base_lr, "weight_decay": member.weight_decay}
        row, is_new = {**setting, **epoch.measures}, epoch.stage not in self._files
        if is_new:
            opened = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = open_own(self._folder / f"{epoch.stage}.csv", opened)
            self._files[epoch.stage] = os.fdopen(descriptor, "w", buffering=1, newline="")
        writer = csv.DictWriter(self._files[epoch.stage], row, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class TensorBoard(Log):
    """Event files, in a folder for each member, which is a run there. None stays open: there may be thousands of members."""

    package: ClassVar[str] = "tensorboard"

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any], goes_on: bool):
        self._folder = folder / "tensorboard"
        self._file = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"  # an open page does not take it for the earlier one
        for old in self._folder.glob("**/events.out.tfevents.*"):
            old.unlink()

    def write(self, epoch: Epoch) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        file, now = self._folder / label_of(epoch) / self._file, time.time()
        values = [Summary.Value(tag=n, simple_value=value) for n, value in epoch.measures.items() if n != "epoch"]
        events = [Event(wall_time=now, step=int(epoch.measures["epoch"]), summary=Summary(value=values))]
        if not file.exists():
            make_folder(file.parent)
            events.insert(0, Event(wall_time=now, file_version="brain.Event:2"))
        with os.fdopen(open_own(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as opened:
            for event in events:
                RecordWriter(opened).write(event.SerializeToString())


class WeightsAndBiases(Log):
    """A run of Weights & Biases for the head, with a curve for each measure of each member.

    Where it goes is set as everywhere: `wandb login`, WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline, … A run that goes on has
    the id of the one that was killed, and leaves out the epochs that that one has logged.
    """

    package: ClassVar[str] = "wandb"

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any], goes_on: bool):
        import wandb

        self._state = folder / "wandb.json"
        known = json.loads(self._state.read_text()) if goes_on and self._state.is_file() else {}
        self._sent: dict[str, int] = known.get("epochs", {})  # by member
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "beyondcls"),
                dir=os.environ.get("WANDB_DIR", folder),
                name=os.environ.get("WANDB_NAME", name),
                id=known.get("id"),
                config=dict(about),
                resume="allow" if known else None,
                reinit="create_new",  # next to those of other heads
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            remedy = "see to it with `wandb login`, or set WANDB_MODE=offline and upload it later, with `wandb sync`"
            raise BeyondClsError(f"Weights & Biases begins no run ({error}); {remedy}") from error
        self._run.define_metric("*", step_metric="epoch")

    def write(self, epoch: Epoch) -> None:
        member, number = label_of(epoch), int(epoch.measures["epoch"])
        if number <= self._sent.get(member, 0):
            return
        measures = {f"{member}/{name}": value for name, value in epoch.measures.items() if name != "epoch"}
        self._run.log({"epoch": number, **measures})
        self._sent[member] = number
        with replacing(self._state) as file:
            file.write_text(json.dumps({"id": self._run.id, "epochs": self._sent}))

    def close(self) -> None:
        self._run.finish()


LOGS: dict[str, type[Log]] = {"csv": Csv, "tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def label_of(epoch: Epoch) -> str:
    """A member among those of its head: `seed0`; where settings are compared `selection/lr0.1-wd0.01-seed0`."""
    member = epoch.member
    if epoch.stage == "training":
        return f"seed{member.seed}"
    return f"{epoch.stage}/lr{member.base_lr}-wd{member.weight_decay}-seed{member.seed}"


@contextmanager
def epoch_logs(
    names: Sequence[str], heads: Mapping[str, tuple[Path, Mapping[str, Any]]]
) -> Iterator[Callable[[Epoch], None] | None]:
    """What `on_epoch` calls: it writes the logs of all heads of a run, which are finished in the end; None without names.

    Logs of a head without epochs stay as they are.

    Args:
        names: of LOGS.
        heads: the folder of the results of each head, and plain values that describe how it is trained.

    Raises:
        BeyondClsError: an unknown name, or its package is not installed.
    """
    for name in names:
        if name not in LOGS:
            raise BeyondClsError(unknown("log", name, LOGS))
        if (package := LOGS[name].package) and find_spec(package) is None:
            raise BeyondClsError(f"--log {name} needs {package}, which is not installed; pip install 'beyondcls[{package}]'")
    logs: dict[str, list[Log]] = {}

    def on_epoch(epoch: Epoch) -> None:
        head = epoch.member.head
        if head not in logs:
            folder, about = heads[head]
            make_folder(folder / FOLDER)
            logs[head] = [LOGS[name](folder / FOLDER, folder.as_posix(), about, epoch.is_replayed) for name in names]
        for log in logs[head]:
            log.write(epoch)

    try:
        yield on_epoch if names else None
    finally:
        for log in chain.from_iterable(logs.values()):
            log.close()
