"""Several processes that write one feature set: same bytes as one, whoever is killed, however many there are."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from extract.datasets import ImageSet, open_images
from extract.run import extract
from store import BeyondClsError, FeatureStore, StoreError
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder
from tests.folders import files

N = 200
ROOT = Path(__file__).parents[2]
TASK = """
import os, signal, sys
from pathlib import Path
import torch
from extract.datasets import open_images
from extract.run import extract
from tests.extract.tiny import tiny_encoder
torch.set_num_threads(1)
tars, out, task, n, pauses = sys.argv[1:]
encoder, images = tiny_encoder(), open_images(tars)
print("begins", flush=True)
def progress(n_images):
    global pauses
    if pauses:
        pauses = ""
        os.kill(os.getpid(), signal.SIGSTOP)
store = extract(
    encoder, images, Path(out), shard_rows=32, batch_size=16, workers=1, task_id=int(task), n_tasks=int(n), views=2,
    progress=progress,
)
print("done" if store is None else "published")
"""


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tars")
    write_tar(folder / "0.tar", samples(N))
    return folder


@pytest.fixture(scope="module")
def images(tars: Path) -> ImageSet:
    return open_images(str(tars))


@pytest.fixture(scope="module")
def whole(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an uninterrupted run of one process."""
    out = tmp_path_factory.mktemp("whole") / "f"
    assert finished(start(tars, out, 0, 1)) == "published"
    return files(out)


def start(tars: Path, out: Path, task: int, n: int, pauses: bool = False) -> subprocess.Popen[str]:
    """A task that has begun to extract; one that `pauses` stops itself (SIGSTOP) as soon as it may write."""
    command = [sys.executable, "-c", TASK, str(tars), str(out), str(task), str(n), "pauses" if pauses else ""]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n", process.communicate()[1]
    return process


def finished(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out.strip()


def test_tasks_at_the_same_time(tars: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    said = [finished(task) for task in [start(tars, tmp_path / "f", i, 3) for i in range(3)]]
    assert "published" in said
    assert files(tmp_path / "f") == whole
    assert not (tmp_path / ".staging").exists(), "nothing is left behind"


def test_a_task_whose_others_never_start_does_it_all(images: ImageSet, whole: dict[str, bytes], tmp_path: Path) -> None:
    store = extract(tiny_encoder(), images, tmp_path / "f", shard_rows=32, batch_size=16, task_id=1, n_tasks=4, views=2)
    assert isinstance(store, FeatureStore)
    assert set(files(tmp_path / "f")) == set(whole)


def test_kills_and_other_numbers_of_tasks(tars: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """A short form of benchmarks/kills.py."""
    chance = random.Random(0)
    for n in (2, 1, 3):
        tasks = [start(tars, tmp_path / "f", i, n) for i in range(n)]
        time.sleep(chance.uniform(0.05, 0.4))
        for task in tasks:
            task.send_signal(signal.SIGKILL)
            task.communicate()
    assert finished(start(tars, tmp_path / "f", 0, 1)) == "published"
    assert files(tmp_path / "f") == whole


def test_one_that_does_not_share_is_refused_and_refuses(images: ImageSet, tars: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder()
    given = {"shard_rows": 32, "batch_size": 16, "views": 2}
    task = start(tars, tmp_path / "f", 0, 2, pauses=True)
    stopped = os.waitid(os.P_PID, task.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert stopped is not None
    assert stopped.si_code == os.CLD_STOPPED
    try:
        with pytest.raises(StoreError, match=r"f is being written by process \d+ on"):
            extract(encoder, images, tmp_path / "f", **given)  # type: ignore[arg-type]
    finally:
        task.send_signal(signal.SIGCONT)
    assert finished(task) == "published"


@pytest.mark.parametrize(("task", "n"), [(2, 2), (-1, 2), (1, 1)])
def test_no_such_task(task: int, n: int, images: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=rf"task_id is {task}, expected 0 to {n - 1} \(n_tasks is {n}\)"):
        extract(tiny_encoder(), images, tmp_path / "f", task_id=task, n_tasks=n)


def test_repair_is_for_one(images: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match="one process repairs a feature set"):
        extract(tiny_encoder(), images, tmp_path / "f", existing="repair", n_tasks=2)
