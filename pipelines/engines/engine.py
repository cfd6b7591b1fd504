"""What all engines have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.watch import Watch
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.encoders import Encoder
    from extract.settings import Engine as HandsOut

TRIES = 3


@dataclass(frozen=True)
class Engine(ABC):
    """Where units of an extraction, and whole runs, are computed: by this process, or by workers that they are handed to.

    Attributes:
        tasks: number of workers.
        gpus: "all" GPUs of this machine, or how many.
        tries: times that a unit may fail, or a run be killed, before the command fails.
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
    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> "HandsOut | None":
        """What hands out units to workers; None if this process computes them.

        Args:
            load: the encoder on a device; it can be pickled.

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
