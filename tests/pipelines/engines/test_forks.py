"""Runs in processes of this machine: what ends them, and what each of them sees."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from pipelines.engines.engine import Run
from pipelines.engines.processes import Slot, run_in_forks
from tests import forked
from tests.extract.pictures import picture, write_file
from tests.features import write_features
from tests.pipelines.engines.runs import Watched


def waits(folder: Path) -> Run:
    """A run that takes for ever."""
    write_file(folder / "waits.py", b"import time\ntime.sleep(3600)\n")
    write_file(folder / "images/a/0.png", picture(0))
    places = ("--data", str(folder / "images"), "--out", str(folder / "f"))
    return Run.writing(str(folder / "waits"), ("extract", "--encoder", f"{folder}/waits.py:make", *places))


def begun(run: Run) -> bool:
    """Whether its process has begun."""
    return run.log.exists()


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    runs = [waits(tmp_path)]

    def interrupt() -> bool:
        if begun(runs[0]):
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_in_forks(Watched(runs, stops=interrupt).agenda, [Slot()])
    assert not multiprocessing.active_children()


def test_a_stop_lets_a_run_end_after_its_epoch_and_begins_no_other(tmp_path: Path) -> None:
    sets = [str(write_features(tmp_path / name, 64, seed=seed).path) for seed, name in enumerate(("train", "test"))]
    given = ("--features", sets[0], "--test", sets[1], "--epochs", "3000", "--device", "cpu")
    runs = [Run.writing(str(tmp_path / name), ("probe", *given, "--out", str(tmp_path / name))) for name in "ab"]
    watched = Watched(runs, stops=lambda: begun(runs[0]) and "features in memory" in runs[0].log.read_text())
    run_in_forks(watched.agenda, [Slot()])
    assert "stopped after an epoch (SIGUSR1); the same command goes on" in runs[0].log.read_text()
    assert list((tmp_path / ".unfinished/a").glob("*.safetensors"))
    assert not begun(runs[1])
    assert (watched.agenda.n_done, watched.agenda.problems) == (0, {})


def compute(folder: Path) -> None:
    run_in_forks(Watched([waits(folder)]).agenda, [Slot()])


def test_runs_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    process = forked.start(compute, tmp_path)
    while not begun(waits(tmp_path)):
        assert process.is_alive()
        time.sleep(0.02)
    below = psutil.Process(process.pid).children(recursive=True)
    assert below
    os.kill(process.pid or 0, signal.SIGKILL)
    gone, _ = psutil.wait_procs(below, timeout=20)
    assert len(gone) == len(below)
