"""Processes that decode images give what threads give, and leave to this one what they cannot do."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from extract.datasets import open_images
from extract.decoding import Decoded, Processes
from extract.loop import Passes
from extract.run import extract
from extract.writing import Task
from store import BeyondClsError
from tests.ended import ended
from tests.extract.late import LateStreams
from tests.extract.tiny import tiny_encoder
from tests.folders import files

HERE = os.getpid()


@pytest.fixture
def in_processes(monkeypatch):
    monkeypatch.setattr(Task, "_n_processes", lambda *_: 2)


def test_the_same_bytes(images, tmp_path, monkeypatch, in_processes):
    options = {"batch_size": 12, "shard_rows": 32, "views": 2, "on_error": "record"}
    streams = LateStreams()
    monkeypatch.setattr("extract.loop.streams_of", lambda _: streams)
    warned, decode, here = [], Passes.decode, []

    def watched(self, *given):
        here.append(os.getpid())
        return decode(self, *given)

    monkeypatch.setattr(Passes, "decode", watched)
    extract(tiny_encoder(), images, tmp_path / "processes", **options, warn=warned.append)
    assert not here, "processes have their own list"
    assert not streams.pinned, "it is let go in the end"
    monkeypatch.setattr(Task, "_n_processes", lambda *_: 0)
    extract(tiny_encoder(), images, tmp_path / "threads", **options)
    assert set(here) == {HERE}
    assert files(tmp_path / "processes") == files(tmp_path / "threads")
    assert not warned


def numbered(row, views, targets):
    for target in targets.values():
        target.fill_(row)
    return Decoded({}, (row, row))


def decoded_by(decode, rows=range(7), n=3, warn=pytest.fail):
    processes = Processes(n, decode, warn)
    memory = processes.share((8, 3, 4, 4))
    try:
        finish = processes.begin(rows, [0], {0: memory})
        return None if finish is None else [one.size[0] for one in finish()], memory[:, 0, 0, 0].tolist(), processes
    finally:
        processes.close()


def test_in_order_and_in_their_places():
    sizes, pixels, processes = decoded_by(numbered, range(10, 17))
    assert sizes == [*range(10, 17)]
    assert pixels == [*range(10, 17), 0]
    assert processes.begin(range(3), [0], {0: torch.zeros(8, 3, 4, 4, dtype=torch.uint8)}) is None, "its memory is not shared"


def test_what_raises_an_error_there_is_decoded_here():
    def refuses(row, views, targets):
        if row == 4 and os.getpid() != HERE:
            raise MemoryError
        return numbered(row, views, targets)

    sizes, pixels, _ = decoded_by(refuses)
    assert sizes == pixels[:7] == [*range(7)]

    def always(row, views, targets):
        raise BeyondClsError("the file has changed")

    with pytest.raises(BeyondClsError, match="the file has changed"):
        decoded_by(always)


def test_views_that_do_not_fit_are_cut_here():
    def apart(row, views, targets):
        return Decoded({}, (row if os.getpid() == HERE else -1, 0), apart={0: torch.zeros(1)})

    assert decoded_by(apart)[0] == [*range(7)]


def test_a_process_that_dies():
    def dies(row, views, targets):
        if row == 5 and os.getpid() != HERE:
            os._exit(3)
        return numbered(row, views, targets)

    warned = []
    sizes, pixels, processes = decoded_by(dies, warn=warned.append)
    assert sizes == pixels[:7] == [*range(7)]
    assert len(warned) == 1
    assert processes.begin(range(3), [0], {0: processes.shared[0]}) is None, "threads go on"


def test_memory_that_cannot_be_pinned(images, tmp_path, monkeypatch, in_processes):
    class Refuses(LateStreams):
        def pin(self, memory):
            super().pin(memory)
            if len(self.pinned) == 2:
                raise RuntimeError("2 MB of shared memory cannot be pinned")

    streams, warned = Refuses(), []
    monkeypatch.setattr("extract.loop.streams_of", lambda _: streams)
    options = {"batch_size": 12, "shard_rows": 32, "on_error": "record"}
    stored = extract(tiny_encoder(), images, tmp_path / "f", **options, warn=warned.append)
    assert stored.valid.sum() == 68
    [warning] = warned
    assert warning.endswith("slower: 2 MB of shared memory cannot be pinned")
    assert not streams.pinned


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent was killed")
def test_they_end_with_the_process_that_is_killed(tmp_path):
    script = tmp_path / "decodes.py"
    script.write_text(
        "import multiprocessing, time\n"
        "from extract.decoding import Decoded, Processes\n"
        "processes = Processes(2, lambda row, views, targets: Decoded({}, (row, row)), print)\n"
        "memory = processes.share((8, 3, 4, 4))\n"
        "processes.begin(range(4), [0], {0: memory})()\n"
        "print(*(one.pid for one in multiprocessing.active_children()), flush=True)\n"
        "time.sleep(60)\n"
    )
    command, folder = [sys.executable, script], Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        children = [int(pid) for pid in process.stdout.readline().split()]
        assert len(children) == 2
        process.send_signal(signal.SIGKILL)
    assert all(map(ended, children))


@pytest.mark.parametrize(
    ("device", "n", "are_files", "expected"),
    [("cuda", 4096, True, 5), ("cpu", 4096, True, 0), ("cuda", 100, True, 0), ("cuda", 4096, False, 0)],
)
def test_where_there_are_any(device, n, are_files, expected, forty):
    """Beside a GPU, for many images, whose bytes this program reads."""
    images = forty if are_files else open_images(np.zeros((1, 32, 32, 3), np.uint8))
    task = Task.__new__(Task)
    task.request = SimpleNamespace(encoder=SimpleNamespace(device=torch.device(device)), images=images)
    task.settings = SimpleNamespace(workers=5)
    assert task._n_processes(n) == expected
