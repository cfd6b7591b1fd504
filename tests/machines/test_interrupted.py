"""Extraction under `dvc repro` that is killed goes on where it was, and shows how far it is."""

import json
import os
import pty
import re
import signal
import subprocess
import time
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from store.format.unfinished import RECORDS
from tests.machines import project
from tests.machines.machine import Machine

pytestmark = pytest.mark.slow

STAGE, FEATURES = project.extract_stage(project.MAE, "train"), project.feature_folder(project.MAE, "train")
N_UNITS = 8


@pytest.fixture(scope="module")
def machine(served, tmp_path_factory) -> Machine:
    """Its extraction writes 8 shards of 32 images, one forward pass each."""
    folder = tmp_path_factory.mktemp("machine")
    machine = project.machine_a(folder / "a", project.small_origin(folder, ("extract",), n_train=32 * N_UNITS), served)
    project.edit(machine.repo, lambda params: params["extract"].update(batch_size=32, workers=1))
    return machine


@pytest.fixture(scope="module")
def shown(machine) -> str:
    """What a terminal shows of the first extraction."""
    leader, follower = pty.openpty()
    running = start(machine, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    with suppress(OSError):  # no process writes any more
        while piece := os.read(leader, 4096):
            shown += piece
    os.close(leader)
    assert running.wait() == 0, shown.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def start(machine: Machine, **places: int) -> subprocess.Popen[bytes]:
    """`dvc repro` of the stage, in a new process group."""
    command = machine.dvc_command("repro", STAGE)
    return subprocess.Popen(command, cwd=machine.repo, env=machine.environment, start_new_session=True, **places)


def recorded(machine: Machine) -> set[int]:
    """Units of the staged set that have a record."""
    return {int(record.stem) for record in machine.repo.glob(f"features/.staging/*/{RECORDS}/*.json")}


def killed_on_the_way(machine: Machine) -> set[int]:
    """Units that were recorded when the stage was killed, a quarter of them at least."""
    (real := copy(machine)).served = None  # a signal to a group does not reach what is served
    running = start(real, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(recorded(machine)) < N_UNITS // 4:
        assert running.poll() is None, "the stage ended before it was killed"
        time.sleep(0.005)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    return recorded(machine)


def compared(machine: Machine) -> list[dict[str, Any]]:
    """Sets that the last run compared with what it would compute."""
    check = project.feature_folder(project.MAE, "train").replace("features/", "receipts/")
    return json.loads((machine.repo / f"{check}.check.json").read_text())["compared"]


def written(folder: Path) -> dict[int, int]:
    """When the shards of an array were written, in nanoseconds, by unit; a kill may leave parts of files, too."""
    shards = {}
    for file in (folder / "c").rglob("*"):
        if file.is_file() and (match := re.fullmatch(r"(\d+)(?:/0)*", str(file.relative_to(folder / "c")))):
            shards[int(match[1])] = file.stat().st_mtime_ns
    return shards


def test_a_terminal_shows_progress(shown):
    counts = [int(n) for n in re.findall(rf"(\d+)/{32 * N_UNITS}\b", shown)]
    assert counts[-1] == 32 * N_UNITS
    assert len(set(counts)) > 2, "the bar did not move"
    assert "images/s" in shown


@pytest.mark.usefixtures("shown")
def test_killed_on_the_way_it_computes_no_unit_twice(machine):
    """The set of other blocks that was there outlives it; DVC has left it in place."""
    before = project.content(machine.repo / FEATURES)
    project.edit(machine.repo, lambda params: params["extract"].update(blocks=[3, -1]))
    done = killed_on_the_way(machine)
    assert len(done) < N_UNITS
    assert project.content(machine.repo / FEATURES) == before
    (staged,) = machine.repo.glob("features/.staging/*")
    written_before = written(staged / "patch/block3/view0")

    assert machine.repro(STAGE) == {STAGE}
    after = written(machine.repo / FEATURES / "patch/block3/view0")
    assert after.keys() == set(range(N_UNITS))
    assert {unit for unit, when in after.items() if written_before.get(unit) == when} >= done
    assert compared(machine), "what both sets have"
    resumed = project.content(machine.repo / FEATURES)
    shards = {name for name in before if "/c/" in name}
    assert {name: resumed[name] for name in shards} == {name: before[name] for name in shards}

    assert machine.repro("--force", "--single-item", STAGE) == {STAGE}
    assert project.content(machine.repo / FEATURES) == resumed
    assert compared(machine), "and nothing was computed but a sample"
