"""What may never answer, such as a network, is waited for so long and no longer."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

SECONDS = 3.0  # for an answer from the network

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """What a function gives. If it takes longer, it is left behind in a thread of its own: looking up a name can hang, too.

    Raises:
        TimeoutError: it did not answer in time; or whatever the function raises.
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
