"""Processes of this machine, as `beyondcls extract --on processes` starts them: same bytes as one, whatever ends them."""

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
import torch

from pipelines.engines import processes
from pipelines.engines.engine import Run
from pipelines.engines.processes import LocalProcesses, Slot, cores, run_in_forks
from store import BeyondClsError
from tests import forked  # its server has imported what is slow to import
from tests.extract.pictures import picture, write_file
from tests.features import write_features
from tests.folders import files
from tests.pipelines.engines.runs import Watched, runs_in
from tests.pipelines.engines.workers import Load, N

TWO = ("--on", "processes", "--tasks", 2)
ONE = ("--on", "processes", "--tasks", 1)
Command, Loads, Files = Callable[..., tuple[int, str, str]], Callable[..., Load], dict[str, bytes]


def tasks() -> list[psutil.Process]:
    """Forks of the server's that compute for this process."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found += child.children()
    return found


@contextmanager
def meanwhile(act: Callable[[], None], pause: Callable[[], float]) -> Iterator[None]:
    """Do this again and again in a thread."""
    ended = Event()

    def again() -> None:
        while not ended.wait(pause()):
            act()

    thread = Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_task_that_is_killed_in_the_middle_of_a_unit_is_replaced(
    command: Command, load: Loads, images: Path, whole: Files, tmp_path: Path
) -> None:
    loaded = load(2)
    status, out, err = command(*loaded.command(images, "f", *TWO))
    assert status == 0, out + err
    assert files(tmp_path / "f") == whole
    assert len(list(tmp_path.glob("ended-*"))) == 2
    assert len(loaded.seen()) in (4, 5), "this one, two tasks, and those in their place, if there is something left to do"
    assert "SIGKILL" in err
    assert not tasks()
    assert not (tmp_path / ".staging").exists(), "nothing is left behind"


def test_tasks_that_are_killed_at_random(command: Command, load: Loads, images: Path, whole: Files, tmp_path: Path) -> None:
    drawn, killed = random.Random(0), list[int]()

    def kill() -> None:
        if len(killed) < 12 and (found := tasks()):
            killed.append(drawn.choice(found).pid)
            os.kill(killed[-1], signal.SIGKILL)

    with meanwhile(kill, lambda: drawn.uniform(0, 0.6)):
        status, out, err = command(*load(1, "slow").command(images, "f", *TWO, "--tries", 20))
    assert status == 0, out + err
    assert killed
    assert files(tmp_path / "f") == whole
    assert not (tmp_path / ".staging").exists()


def test_a_stop_lets_tasks_finish_their_units(
    command: Command, load: Loads, images: Path, whole: Files, tmp_path: Path
) -> None:
    loaded = load(2, "slow")

    def stop() -> None:
        if list(tmp_path.glob("loaded-*")) and any(".writing/units" in str(f) for f in (tmp_path / ".staging").rglob("*.json")):
            os.kill(os.getpid(), signal.SIGUSR1)

    with meanwhile(stop, lambda: 0.02):
        status, _, _ = command(*loaded.command(images, "f", *ONE))
    assert status == 75
    assert not tasks()
    done = len(list((tmp_path / ".staging").rglob("units/*.json")))
    assert 0 < done < 5
    for left in tmp_path.glob("loaded-*"):
        left.unlink()
    loaded.ends(0)
    assert command(*loaded.command(images, "f"))[0] == 0
    assert files(tmp_path / "f") == whole
    assert sum(loaded.seen().values()) < N, "what was written is kept"


def test_a_unit_that_fails_again_and_again(command: Command, load: Loads, images: Path) -> None:
    loaded = load(99, "raise")
    status, _, err = command(*loaded.command(images, "f", *ONE, "--tries", 2))
    error = err[err.index("error: ") :]
    assert status == 1
    assert "failed 2 times" in error
    assert "RuntimeError" in error
    assert "unit 4 (rows 128 to 149)" in error
    assert len(loaded.seen()) == 3, "this one, and two tasks"
    assert not tasks()


def test_a_damaged_image_ends_all_at_once(command: Command, load: Loads, tmp_path: Path, images: Path) -> None:
    loaded = load()
    shutil.copytree(images, tmp_path / "images")
    write_file(tmp_path / "images/a/0100.png", b"none")
    status, out, err = command(*loaded.command(Path("images"), "f", *TWO))
    assert status == 1
    assert (out + err).count("cannot be decoded") == 1
    assert len(loaded.seen()) <= 3, "no task is started again"
    assert command(*loaded.command(Path("images"), "f", *TWO, "--on-error", "record"))[0] == 0
    assert command(*loaded.command(Path("images"), "g", "--on-error", "record"))[0] == 0
    assert files(tmp_path / "f") == files(tmp_path / "g")


def test_what_a_set_has_is_taken_over(command: Command, load: Loads, images: Path, tmp_path: Path) -> None:
    """Also the first rows of the last unit: images were added."""
    loaded = load()
    shutil.copytree(images, tmp_path / "images")
    added = [file.rename(tmp_path / file.name) for file in sorted((tmp_path / "images/a").iterdir())[N - 10 :]]
    assert command(*loaded.command(Path("images"), "f"))[0] == 0
    of_loading = loaded.seen()[os.getpid()] - (N - 10)
    for file in added:
        file.rename(tmp_path / "images/a" / file.name)
    shutil.copytree(tmp_path / "f", tmp_path / "g")
    for seen in tmp_path.glob("loaded-*"):
        seen.unlink()
    status, out, err = command(*loaded.command(Path("images"), "f", *TWO, "--update"))
    assert status == 0, out + err
    (by_task,) = (n for pid, n in loaded.seen().items() if pid != os.getpid())  # one unit needs no more
    assert by_task == 10 + of_loading
    assert command(*loaded.command(Path("images"), "g", "--update"))[0] == 0
    assert files(tmp_path / "f") == files(tmp_path / "g")


@pytest.mark.parametrize(
    ("given", "n_gpus", "devices"),
    [
        ({}, 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ({"gpus": "all"}, 2, ["cuda:0", "cuda:1"]),
        ({"gpus": 1, "device": "cuda"}, 2, ["cuda:0"]),
        ({"tasks": 3}, 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ({"tasks": 2, "device": "cpu"}, 2, ["cpu", "cpu"]),
        ({}, 0, ["cpu"] * max(1, cores() // 4)),
        *(({"gpus": "all"}, 0, None), ({"gpus": 3}, 2, None), ({"device": "cuda:1"}, 2, None)),  # not there
    ],
)
def test_devices(given: dict, n_gpus: int, devices: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    engine = LocalProcesses(**given)
    if devices is None:
        with pytest.raises(BeyondClsError):
            engine.devices()
    else:
        assert engine.devices() == devices
        assert (engine.n_tasks(100), engine.n_tasks(1)) == (len(devices), 1)


def test_each_task_has_a_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = list[processes.Slot]()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(processes, "run_in_forks", lambda _, given: places.extend(given))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, MIG-4, 5")
    LocalProcesses(gpus="all").run_all(Watched(runs_in(tmp_path, "a", "b")).agenda)
    assert [place.environment for place in places] == [{"CUDA_VISIBLE_DEVICES": name} for name in ("3", "MIG-4")]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert (processes.alone("cpu"), processes.alone("cuda:2")) == ({}, {"CUDA_VISIBLE_DEVICES": "2"})


def test_they_divide_the_cores_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (processes.threads_of_each(1), processes.threads_of_each(1000)) == (cores(), 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert processes.threads_of_each(1) is None


def waits(folder: Path) -> Run:
    """A run that takes for ever."""
    write_file(folder / "waits.py", b"import time\ntime.sleep(3600)\n")
    write_file(folder / "images/a/0.png", picture(0))
    places = ("--data", str(folder / "images"), "--out", str(folder / "f"))
    return Run.writing(str(folder / "waits"), ("extract", "--encoder", f"{folder}/waits.py:make", *places))


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    run = waits(tmp_path)

    def interrupt() -> bool:
        if run.log.exists():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_in_forks(Watched([run], stops=interrupt).agenda, [Slot()])
    assert not multiprocessing.active_children()


def test_a_stop_lets_a_run_end_after_its_epoch_and_begins_no_other(tmp_path: Path) -> None:
    sets = [str(write_features(tmp_path / name, 64, seed=seed).path) for seed, name in enumerate(("train", "test"))]
    given = ("--features", sets[0], "--test", sets[1], "--epochs", "3000", "--device", "cpu")
    runs = [Run.writing(str(tmp_path / name), ("probe", *given, "--out", str(tmp_path / name))) for name in "ab"]
    watched = Watched(runs, stops=lambda: runs[0].log.exists() and "features in memory" in runs[0].log.read_text())
    run_in_forks(watched.agenda, [Slot()])
    assert "stopped after an epoch (SIGUSR1); the same command goes on" in runs[0].log.read_text()
    assert list((tmp_path / ".unfinished/a").glob("*.safetensors"))
    assert not runs[1].log.exists()
    assert (watched.agenda.n_done, watched.agenda.problems) == (0, {})


def compute(folder: Path) -> None:
    run_in_forks(Watched([waits(folder)]).agenda, [Slot()])


def test_runs_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    process = forked.start(compute, tmp_path)
    while not waits(tmp_path).log.exists():
        assert process.is_alive()
        time.sleep(0.02)
    below = psutil.Process(process.pid).children(recursive=True)
    assert below
    os.kill(process.pid or 0, signal.SIGKILL)
    gone, _ = psutil.wait_procs(below, timeout=20)
    assert len(gone) == len(below)
