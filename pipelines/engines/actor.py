"""A worker in an actor of Ray. Features stay where they are computed; calls return only records of units."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from extract.encoders import Encoder
from extract.handing import Handed, Job, Record, UnitError, Worker
from pipelines.engines.worker import begin, problem_of

CALLS = 2  # units that an actor has at a time: it decodes images of one while it computes the other
Answer = dict[str, Any]


class Actor:
    """Holds the encoder, and computes a unit for each call of `compute`, in their order.

    It is the `Handout` of its own worker. Failures are values, because Ray's errors do not tell a unit's from those of a node.
    """

    def __init__(self) -> None:
        self._units: queue.Queue[Handed] = queue.Queue()
        self._answers: dict[int, Future[Answer]] = {}
        self._warnings: list[str] = []

    def begin(self, job: Job, load: Callable[[str], Encoder], device: str, n_threads: int | None) -> Answer:
        """Load the encoder; arguments are those of `begin`. The answer is empty, or has `problem` and `is_final`."""
        try:
            worker = begin(job, load, device, n_threads)
        except Exception as error:
            problem, is_final = problem_of(error)
            return {"problem": problem, "is_final": is_final}
        threading.Thread(target=self._work, args=(worker,), daemon=True).start()
        return {}

    def compute(self, handed: Handed) -> Answer:
        """Compute and write a unit.

        The answer has its `record`; or the `unit` that failed, its `problem` and `is_final`; or nothing, as another failed.
        """
        answer = self._answers[handed.number] = Future()
        self._units.put(handed)
        return {**answer.result(), "warnings": self._warnings}

    def take(self, waits: bool) -> Handed | None:
        try:
            return self._units.get(block=waits)
        except queue.Empty:
            return None

    def written(self, record: Record) -> None:
        self._answers.pop(record["unit"]).set_result({"record": record})

    def warn(self, message: str) -> None:
        self._warnings.append(message)

    def computed(self, unit: int) -> None:
        pass

    def progress(self, n_images: int) -> None:
        pass

    def _work(self, worker: Worker) -> None:
        try:
            worker.run(self)
        except UnitError as error:
            problem, is_final = problem_of(error.__cause__ or error)
            self._answers.pop(error.unit).set_result({"unit": error.unit, "problem": problem, "is_final": is_final})
        for answer in list(self._answers.values()):
            answer.set_result({})
