"""What never answers is not waited for."""

import threading

import pytest

from pipelines.doctor.deadline import within


def test_answers_and_errors_come_through():
    assert within(5, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)


def test_it_gives_up():
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        within(0.1, never.wait)
    never.set()
