"""Several processes that write one feature set: same bytes as one, with any of them killed, and any number of them."""

import random
import time
import uuid
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch

from extract.datasets import open_images
from extract.requests import Request
from extract.run import create_at
from extract.writing import Settings
from store import FeatureStore
from store.places import place_at
from store.writing.claims import own_first
from tests.extract.extracting import extract
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder
from tests.folders import files
from tests.forked import CONTEXT, start

N = 104
GIVEN = {"shard_rows": 32, "batch_size": 16, "views": 2}


class Task:
    """A process that shares an extraction, and has begun; one that `pauses` waits as soon as it may write."""

    def __init__(self, tars: Path, out: Path, task: int, n: int, pauses: bool = False):
        begins, self.waits, self.goes_on = (CONTEXT.Event() for _ in range(3))
        if not pauses:
            self.goes_on.set()
        self._outcome, outcome = CONTEXT.Pipe(duplex=False)
        self.process = start(share, tars, out, {"task_id": task, "n_tasks": n}, begins, self.waits, self.goes_on, outcome)
        assert begins.wait(60)

    def finished(self) -> str:
        self.process.join()
        assert self.process.exitcode == 0
        return self._outcome.recv()


def share(
    tars: Path, out: Path, task: dict[str, int], begins: Event, waits: Event, goes_on: Event, outcome: Connection
) -> None:
    torch.set_num_threads(1)
    encoder, images = tiny_encoder(), open_images(str(tars))
    begins.set()
    store = extract(encoder, images, out, **task, **GIVEN, workers=1, progress=lambda _: waits.set() or goes_on.wait())
    outcome.send("stopped" if store is None else "published")


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    write_tar(folder / "0.tar", samples(N))
    return folder


@pytest.fixture(scope="module")
def images(tars):
    return open_images(str(tars))


@pytest.fixture(scope="module")
def whole(tars, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "f"
    assert Task(tars, out, 0, 1).finished() == "published"
    return files(out)


def test_a_task_whose_others_never_start_does_it_all(images, whole, tmp_path):
    assert extract(tiny_encoder(), images, tmp_path / "f", **GIVEN, task_id=1, n_tasks=4) is not None
    assert set(files(tmp_path / "f")) == set(whole)


def test_straight_to_an_object_store(images, whole):
    """What another task has written before it was killed is taken, and counts as done."""
    done = []

    def stop(n):
        done.append(n)
        if sum(done) > 40:
            raise KeyboardInterrupt

    address, request = f"memory://{uuid.uuid4().hex}/f", Request.resolve(tiny_encoder(), images, shard_rows=32, views=2)
    with pytest.raises(KeyboardInterrupt):
        create_at(request, address, Settings(16, 1, task_id=0, n_tasks=2, progress=stop))
    done.clear()
    create_at(request, address, Settings(16, 1, task_id=1, n_tasks=2, progress=done.append))
    assert done[0] > 0
    assert sum(done) == N
    place = place_at(address)
    assert {name for name in place.sizes() if name.endswith("zarr.json")} == {n for n in whole if n.endswith("zarr.json")}
    assert FeatureStore.open(address).spec == request.spec


def test_the_order_of_tries():
    first, second = own_first(range(12), 1, 3), own_first(range(12), 2, 3)
    assert first[:4] == [1, 4, 7, 10]
    assert sorted(first) == sorted(second) == list(range(12))
    assert [u for u in first if u % 3 == 0] != [u for u in second if u % 3 == 0], "they do not all try the same one"


def test_kills_and_other_numbers_of_tasks(tars, whole, tmp_path):
    chance = random.Random(0)
    for n in (2, 1):
        tasks = [Task(tars, tmp_path / "f", i, n) for i in range(n)]
        time.sleep(chance.uniform(0.05, 0.4))
        for task in tasks:
            task.process.kill()
            task.process.join()
    assert Task(tars, tmp_path / "f", 0, 1).finished() == "published"
    assert files(tmp_path / "f") == whole


def test_one_shares_with_another_that_was_not_asked_to(images, tars, whole, tmp_path):
    """It computes what the other has not claimed, and waits for that."""
    task = Task(tars, tmp_path / "f", 0, 1, pauses=True)
    assert task.waits.wait(60)
    done = []

    def progress(n):
        done.append(n)
        if sum(done) >= N - 64:
            task.goes_on.set()

    assert extract(tiny_encoder(), images, tmp_path / "f", progress=progress, **GIVEN) is not None
    assert task.finished() == "published"
    assert sum(done) == N
    assert files(tmp_path / "f") == whole
    assert not (tmp_path / ".staging").exists(), "nothing is left behind"


def test_one_that_is_asked_to_stop_ends_after_a_whole_unit(images, whole, tmp_path):
    done = []
    stopping = {"stops": lambda: sum(done) >= 16, "progress": done.append}
    assert extract(tiny_encoder(), images, tmp_path / "f", **GIVEN, n_tasks=2, **stopping) is None
    assert sum(done) in (32, 64), "not the half of a unit"
    assert extract(tiny_encoder(), images, tmp_path / "f", **GIVEN, n_tasks=2) is not None
    assert files(tmp_path / "f") == whole
