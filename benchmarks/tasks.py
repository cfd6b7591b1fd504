"""Many tasks that write one feature set, some of them killed, one stopped for a while: the bytes are those of a quiet run.

    python -m benchmarks.tasks [--quick] [--place s3|folder] [--tasks 64] [--units 1280] [--kills 40] [--stop 0] [--seed 0]

No encoder runs: a unit takes `--seconds` of sleep and holds 32 rows of tiny tokens, so that what is measured is the control
plane: claims, records, listings. `s3` is moto's server on this machine, in a process of its own, or `--endpoint URL` with a
bucket `--bucket`; `folder` is a common folder. A killed task is replaced at once. With `--stop` one task is
stopped for so many seconds in the middle of its work (SIGSTOP), and goes on. The last line is JSON: the share of files that are
equal, which must be 1; units that were written again although another task had them, as a share of all; units per second from
the first that was begun to the last that was done, also after the end of a claim.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.remotes import free_port, wait_for
from store import ArrayLayout, FeatureSpec, FeatureWriter
from store.places import place_at
from store.places.place import map_parallel
from store.writing import claims
from store.writing.claims import own_first

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["s3fs", "benchmarks.remotes", "store.writing.writer"])
ROWS = 32  # of a unit
ATTRIBUTES: dict[str, Any] = {"encoder": "none", "norm_eps": None, "classes": None, "problems": []}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        seconds: that computing a unit takes.
        stop: seconds for which one task is stopped; 0 for none.
        claim: seconds after which claims end; by default those of the program.
    """

    tasks: int
    units: int
    kills: int
    seconds: float = 0.2
    stop: float = 0.0
    claim: float | None = None
    seed: int = 0

    @property
    def spec(self) -> FeatureSpec:
        n = ROWS * self.units
        return FeatureSpec("0" * 32, '{"name": "none"}', {"input_size": [3, 8, 8]}, "1" * 32, n, (0,), (), ())

    @property
    def layouts(self) -> list[ArrayLayout]:
        n = ROWS * self.units
        return [
            ArrayLayout("images/label", (n,), "int64", ("image",), ROWS),
            ArrayLayout("patch/block0/view0", (n, 2, 3), "float16", ("image", "patch", "channel"), ROWS, codec="float16"),
        ]

    def values(self, unit: int) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(unit)
        return {a.name: generator.normal(size=(ROWS, *a.shape[1:])).astype(a.dtype) for a in self.layouts}

    def writer(self, address: str) -> FeatureWriter:
        return FeatureWriter(address, self.spec, self.layouts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="8 tasks, 64 units, 6 kills, claims that end after 3 seconds")
    parser.add_argument("--place", choices=("s3", "folder"), default="s3")
    parser.add_argument("--endpoint", help="an S3 service that runs already")
    parser.add_argument("--bucket", default="sets")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--units", type=int, default=1280)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="that computing a unit takes")
    parser.add_argument("--stop", type=float, default=0.0, help="seconds for which one task is stopped")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    trial = Trial(given.tasks, given.units, given.kills, given.seconds, given.stop, seed=given.seed)
    if given.quick:
        trial = replace(trial, tasks=8, units=64, kills=6, seconds=0.2, claim=3)
    if given.place == "folder":
        with tempfile.TemporaryDirectory(prefix="beyondcls-tasks-") as folder:
            print(json.dumps(run(trial, f"{folder}/one")))
        return
    with served(given.bucket) if given.endpoint is None else at_endpoint(given.endpoint):
        print(json.dumps(run(trial, f"s3://{given.bucket}/tasks-{time.time_ns()}/one-{trial.spec.key}")))


@contextmanager
def served(bucket: str) -> Iterator[None]:
    """moto's server in a process of its own; this process and those that it starts find it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with tempfile.NamedTemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(port, server, Path(log.name))
            with at_endpoint(f"http://127.0.0.1:{port}"):
                import s3fs  # type: ignore[import-untyped]

                s3fs.S3FileSystem().mkdir(bucket)
                yield
        finally:
            server.kill()
            server.wait()


@contextmanager
def at_endpoint(url: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({**CREDENTIALS, **os.environ, "AWS_ENDPOINT_URL": url})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(trial: Trial, address: str) -> dict[str, Any]:
    """Let the tasks write the set; what came of it."""
    scratch = Path(tempfile.mkdtemp(prefix="beyondcls-tasks-"))
    try:
        log = scratch / "log"
        log.touch()
        killed, stopped = disturb(trial, address, log)
        events = [line.split() for line in log.read_text().splitlines()]
        one, other = quiet(trial, scratch / "quiet"), contents(address)
    finally:
        shutil.rmtree(scratch)
    done = Counter(unit for event, unit, _ in events if event == "done")
    times = [float(at) for event, _, at in events if event == "done" or at == events[0][2]]
    equal = sum(one.get(name) == content for name, content in other.items())
    print(
        f"{trial.tasks} tasks, {trial.units} units, {killed} killed, {stopped} stopped; {len(events) - done.total()} units "
        f"begun, {done.total()} done, in {max(times) - min(times):.1f} s; {equal} of {len(one | other)} files equal",
        flush=True,
    )
    return {
        "equal_files": equal / len(one | other),
        "done_again": (done.total() - len(done)) / trial.units,
        "units_per_s": trial.units / (max(times) - min(times)),
    }


def disturb(trial: Trial, address: str, log: Path) -> tuple[int, int]:
    """Run the tasks until the set is finished; how many were killed, and stopped."""
    chance = random.Random(trial.seed)
    tasks = {number: start(trial, address, number, log) for number in range(trial.tasks)}
    killed, stopped, goes_on = 0, 0, 0.0
    to_stop = chance.randrange(trial.tasks) if trial.stop else None
    while tasks:
        time.sleep(0.02)
        n_begun = log.read_bytes().count(b"begun")
        if to_stop in tasks and not stopped and n_begun >= trial.units // 4:
            os.kill(tasks[to_stop].pid or 0, signal.SIGSTOP)
            stopped, goes_on = 1, time.monotonic() + trial.stop
        if stopped and goes_on and time.monotonic() > goes_on and to_stop is not None:
            os.kill(tasks[to_stop].pid or 0, signal.SIGCONT)
            goes_on = 0.0
        # Evenly over the run, and at random moments of what each is doing.
        if killed < trial.kills and n_begun >= trial.units * killed // (trial.kills + 1) + 1:
            number = chance.choice([number for number in tasks if number != to_stop] or list(tasks))
            tasks[number].kill()
            tasks[number].join()
            tasks[number], killed = start(trial, address, number, log), killed + 1
        for number in [number for number, task in tasks.items() if not task.is_alive()]:
            if tasks.pop(number).exitcode:
                for task in tasks.values():
                    task.kill()
                raise RuntimeError("a task failed")
    assert is_finished(address)
    return killed, stopped


def start(trial: Trial, address: str, number: int, log: Path) -> ForkServerProcess:
    process = CONTEXT.Process(target=work, args=(trial, address, number, log, dict(os.environ)))
    process.start()
    return process


def work(trial: Trial, address: str, number: int, log: Path, environment: dict[str, str]) -> None:
    """One task: what extraction does, without an encoder."""
    os.environ.update(environment)
    if trial.claim is not None:
        claims.SECONDS = trial.claim
    with trial.writer(address) as writer:
        todo = writer.missing_units()
        while todo:
            for unit in own_first(todo, number, trial.tasks):
                if writer.claim(unit):
                    note(log, "begun", unit)
                    time.sleep(trial.seconds)
                    writer.write_unit(unit, trial.values(unit))
                    note(log, "done", unit)
            todo = writer.wait_for_others()
        writer.finish(ATTRIBUTES)


def note(log: Path, event: str, unit: int) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{event} {unit} {time.monotonic()}\n".encode())
    os.close(descriptor)


def is_finished(address: str) -> bool:
    return place_at(address).content("zarr.json") is not None


def quiet(trial: Trial, folder: Path) -> dict[str, bytes]:
    """The files as one process writes them."""
    with FeatureWriter(folder, trial.spec, trial.layouts) as writer:
        for unit in writer.missing_units():
            writer.write_unit(unit, trial.values(unit))
        writer.finish(ATTRIBUTES)
    return contents(str(folder))


def contents(address: str) -> dict[str, bytes]:
    place = place_at(address)
    names = list(place.sizes())
    return dict(zip(names, map_parallel(lambda name: place.content(name) or b"", names, 8), strict=True))


if __name__ == "__main__":
    main()
