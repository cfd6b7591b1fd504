"""Slurm's configuration, as a scontrol of our own shows it."""

from pathlib import Path

import pytest

from pipelines.doctor import slurm
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says


@pytest.fixture
def shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sets up what `scontrol show config` prints, and its exit status."""

    def show(text: str, status: int = 0) -> Machine:
        command = tmp_path / "scontrol"
        command.write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\nexit {status}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return Machine(folder=tmp_path)

    return show


@pytest.mark.parametrize(
    ("config", "state", "word"),
    [
        ("JobRequeue              = 1\nPreemptMode             = REQUEUE", "ok", "REQUEUE"),
        ("JobRequeue              = 1\nPreemptMode             = GANG,SUSPEND", "ok", "SUSPEND"),
        ("JobRequeue              = 1\nPreemptMode             = CANCEL", "note", "PreemptMode=REQUEUE"),
        ("JobRequeue              = 0\nPreemptMode             = OFF", "note", "JobRequeue is 0"),
        ("", "note", "sinfo"),
    ],
)
def test_requeueing(shows, config: str, state: str, word: str) -> None:
    says(slurm.check(shows(config)), state, word)


def test_a_controller_that_does_not_answer(shows) -> None:
    says(slurm.check(shows("PreemptMode = OFF", 1)), "note", "sinfo")


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.check(Machine(folder=tmp_path)) is None
