"""A short form of benchmarks/tasks.py: tasks that share a set are killed and stopped, and nothing is lost or differs."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tasks import Trial, run
from tests.s3 import served

TRIAL = Trial(tasks=3, units=12, kills=2, seconds=0.1, claim=2.0)


@pytest.mark.slow
def test_in_an_object_store() -> None:
    """One task is stopped for longer than its claim lasts, so that its unit is written by two."""
    with served("sets"):
        assert run(replace(TRIAL, stop=3.0), f"s3://sets/one-{TRIAL.spec.key}")["equal_files"] == 1.0


def test_in_a_folder(tmp_path: Path) -> None:
    result = run(TRIAL, str(tmp_path / "one"))
    assert (result["equal_files"], result["done_again"]) == (1.0, 0.0)
