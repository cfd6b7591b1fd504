"""A worker in a process of its own, which talks with the one that started it."""

import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from extract.encoders import Encoder
from extract.handing import Handed, Job, Record, UnitError
from pipelines.engines.forks import obey_parent
from pipelines.engines.worker import begin, problem_of


class Talk:
    """The `Handout` of a worker at the other end of a connection. Threads may report at the same time."""

    def __init__(self, connection: Connection):
        self._connection, self._sending = connection, threading.Lock()

    def take(self, waits: bool) -> Handed | None:
        self.send("take", waits)
        return self._connection.recv()

    def computed(self, unit: int) -> None:
        self.send("computed", unit)

    def written(self, record: Record) -> None:
        self.send("written", record)

    def progress(self, n_images: int) -> None:
        self.send("progress", n_images)

    def warn(self, message: str) -> None:
        self.send("warn", message)

    def send(self, *message: Any) -> None:
        with self._sending:
            self._connection.send(message)


def serve(connection: Connection, job: Job, load: Callable[[str], Encoder], device: str, n_threads: int | None) -> None:
    """Compute units until there are no more, or one fails; arguments are those of `begin`."""
    obey_parent()
    talk, unit = Talk(connection), None
    try:
        try:
            begin(job, load, device, n_threads).run(talk)
        except UnitError as error:
            unit = error.unit
            raise error.__cause__ or error from None
    except (EOFError, BrokenPipeError):  # the one that started this has gone
        sys.exit(1)
    except Exception as error:
        talk.send("failed", unit, *problem_of(error))
