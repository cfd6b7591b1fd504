"""Extraction under `dvc repro` that is killed goes on where it was, and shows how far it is."""

import json
import os
import pty
import re
import signal
import subprocess
import time
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


def start(machine: Machine, **places: int) -> subprocess.Popen[bytes]:
    """`dvc repro` of the stage, in a new process group: of processes that a signal reaches, none that is served."""
    (real := copy(machine)).served = None
    return subprocess.Popen(
        real.dvc_command("repro", STAGE), cwd=real.repo, env=real.environment, start_new_session=True, **places
    )


def recorded(machine: Machine) -> set[int]:
    """Units of the staged set that have a record."""
    return {int(record.stem) for record in machine.repo.glob(f"features/.staging/*/{RECORDS}/*.json")}


def killed_on_the_way(machine: Machine) -> set[int]:
    """Units that were recorded when the stage was killed, a quarter of them at least."""
    running = start(machine, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def written(folder: Path) -> dict[tuple[str, int], int]:
    """When the shards below a folder were written, in nanoseconds, by array and unit."""
    shards = {}
    for file in folder.rglob("*"):
        match = re.fullmatch(r"(.*)/c/(\d+)(?:/0)*", str(file.relative_to(folder)))
        if match and file.is_file():  # a kill may leave parts of files, too
            shards[match[1], int(match[2])] = file.stat().st_mtime_ns
    return shards


def test_killed_on_the_way_it_computes_no_unit_twice(machine):
    done = killed_on_the_way(machine)
    assert len(done) < N_UNITS
    assert not (machine.repo / FEATURES / "zarr.json").exists()
    (staged,) = machine.repo.glob("features/.staging/*")
    before = written(staged)

    assert machine.repro(STAGE) == {STAGE}
    after = written(machine.repo / FEATURES)
    assert {unit for _, unit in after} == set(range(N_UNITS))
    assert {shard for shard in after if shard[1] in done} <= {s for s, when in after.items() if before.get(s) == when}

    resumed = project.content(machine.repo / FEATURES)
    assert not compared(machine)
    assert machine.repro("--force", "--single-item", STAGE) == {STAGE}
    assert project.content(machine.repo / FEATURES) == resumed
    assert compared(machine), "and nothing was computed but a sample"


def test_what_is_there_outlives_a_run_that_would_replace_it(machine):
    """Where it is killed, the set of other blocks that was there is there; DVC has left it in place."""
    before = project.content(machine.repo / FEATURES)
    project.edit(machine.repo, lambda params: params["extract"].update(blocks=[3, -1]))
    done = killed_on_the_way(machine)
    assert project.content(machine.repo / FEATURES) == before
    (staged,) = machine.repo.glob("features/.staging/*")
    written_before = written(staged / "patch/block3")

    assert machine.repro(STAGE) == {STAGE}
    after = written(machine.repo / FEATURES / "patch/block3")
    assert {unit for (_, unit), when in after.items() if written_before.get(("view0", unit)) == when} >= done
    assert compared(machine), "what both sets have"
    content = project.content(machine.repo / FEATURES)
    shards = {name for name in before if "/c/" in name}
    assert {name: content[name] for name in shards} == {name: before[name] for name in shards}


def test_a_terminal_shows_progress(machine):
    project.edit(machine.repo, lambda params: params["extract"].update(batch_size=16, dtype="float32"))
    leader, follower = pty.openpty()
    shown = b""
    running = start(machine, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    while True:
        try:
            shown += (piece := os.read(leader, 4096))
        except OSError:  # no process writes any more
            break
        if not piece:
            break
    os.close(leader)
    assert running.wait() == 0, shown.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    counts = [int(n) for n in re.findall(rf"(\d+)/{32 * N_UNITS}\b", text)]
    assert counts[-1] == 32 * N_UNITS
    assert len(set(counts)) > 2, "the bar did not move"
    assert "images/s" in text
