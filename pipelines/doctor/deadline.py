"""Calls that may never answer, such as those to a network, with a time limit."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

SECONDS = 3.0  # for an answer from the network

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """The result of a function. If it takes longer, it is abandoned in its own thread: even looking up a host name can hang.

    Raises:
        TimeoutError: it did not answer in time; or any error of the function.
    """
    answers: SimpleQueue[Future[T]] = SimpleQueue()

    def run() -> None:
        answer: Future[T] = Future()
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)
        answers.put(answer)

    Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    return answer.result()
