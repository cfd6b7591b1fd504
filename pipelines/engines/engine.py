"""What all engines have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipelines.engines.agenda import Agenda
from store import BeyondClsError

TRIES = 3


@dataclass(frozen=True)
class Engine(ABC):
    """Where runs are computed, whole commands of this program; an extraction that is shared consists of several.

    Attributes:
        tasks: number of workers.
        gpus: "all" GPUs of this machine, or how many.
        tries: times that a run may be killed before the command fails, or a task of an extraction fail.
        address: of a Ray cluster.
        sbatch: options of sbatch, as one text.
        setup: lines of shell that a task of a job array runs first.
        device: what workers compute on, as for `choose_device`.

    Raises:
        BeyondClsError: a number that cannot be.
    """

    options: ClassVar[tuple[str, ...]] = ()  # of these attributes, those that it reads, except for `device`
    cluster: ClassVar[str] = ""  # what it needs beside this machine

    tasks: int | None = None
    gpus: int | str | None = None
    tries: int = TRIES
    address: str | None = None
    sbatch: str | None = None
    setup: Sequence[str] | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("tasks", "tries"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BeyondClsError(f"{name} is {value}, expected 1 or more")
        if self.tasks is not None and self.gpus is not None:
            raise BeyondClsError(
                f"tasks is {self.tasks} and gpus is {self.gpus}: there is one worker for each GPU; give one of them"
            )

    @abstractmethod
    def n_tasks(self, n_units: int) -> int:
        """Of how many tasks an extraction of so many units consists; 0 if this process computes them.

        Raises:
            BeyondClsError: they cannot be started here.
        """

    @abstractmethod
    def run_all(self, agenda: Agenda) -> None:
        """Have all runs computed, each in a process of its own that ends with this one at the latest.

        Raises:
            BeyondClsError: they cannot be started here.
        """

    def check_device(self) -> None:
        """Refuse a device that several workers would share.

        Raises:
            BeyondClsError: `device` is one of several.
        """
        if self.device not in ("auto", "cpu", "cuda"):
            raise BeyondClsError(
                f"device is {self.device!r}, which is one device for several workers; give auto, cpu or cuda "
                "(CUDA_VISIBLE_DEVICES says which GPUs are used), or --on here"
            )


@dataclass(frozen=True)
class Here(Engine):
    """No workers. Of several tasks that share a set, each is one of these."""

    def n_tasks(self, n_units: int) -> int:
        return 0

    def run_all(self, agenda: Agenda) -> None:
        from pipelines.engines.forks import CONTEXT, Place, run_in_forks

        CONTEXT.set_forkserver_preload(agenda.imports)
        run_in_forks(agenda, [Place()])
