"""Tasks in a cluster of several nodes on this machine: same bytes as one process, while nodes die and join."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from pipelines.engines import ray_tasks
from pipelines.engines.engine import Run
from tests.folders import files
from tests.machines.project import ROOT
from tests.pipelines.engines.runs import Watched
from tests.pipelines.engines.workers import Load

ray = pytest.importorskip("ray", reason="ray is not installed; pip install 'beyondcls[ray]'")
# A node that refuses connections is dead at once; one that is slow to answer, as where processors are busy, after a minute.
NOTICED_SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 2}
SYSTEM = NOTICED_SOON | {"health_check_timeout_ms": 60_000, "worker_niceness": 0}
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and two nodes of one core."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # nodes hand it on to tasks
        head = {"num_cpus": 0, "no_monitor": True, "include_dashboard": False, "_system_config": SYSTEM}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster
        cluster.shutdown()


def has_text(file: Path) -> bool:
    return file.exists() and bool(file.read_text())


def test_a_node_that_dies_in_the_middle_of_a_unit_and_one_that_joins(
    cluster: Any, command: Command, load: Callable[..., Load], images: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    def replace_node() -> None:
        while not has_text(reached):
            assert not ended.wait(0.02)
        (node,) = (node for node in cluster.list_all_nodes() if node.node_id == reached.read_text())
        cluster.remove_node(node, allow_graceful=False)
        cluster._shutdown_at_exit = False  # or it handles signals, and ends with its thread
        cluster.add_node(num_cpus=1)

    reached, ended = tmp_path / "ended-0", Event()
    options = ("--on", "ray", "--tasks", 2, "--tries", 1, "--address", cluster.address)
    with ThreadPoolExecutor(1) as thread:
        replacing = thread.submit(replace_node)
        try:
            status, out, err = command(*load(1, "hang").command(images, "f", *options))
        finally:
            ended.set()
    replacing.result()
    assert status == 0, out + err
    assert files(tmp_path / "f") == whole
    assert not (tmp_path / ".staging").exists(), "nothing is left behind"


def test_a_task_that_fails_and_one_of_an_extraction_that_a_stop_ends(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, endless = (Run.writing(str(tmp_path / name), ()) for name in ("bad", "endless"))

    def run_command(run: Run, *_: object) -> int:
        if run.name == bad.name:
            return 1
        run.log.parent.mkdir()
        run.log.write_text(str(os.getpid()))
        time.sleep(600)
        return 0

    monkeypatch.setattr(ray_tasks, "run_command", run_command)
    watched = Watched([bad, endless], stops=lambda: has_text(endless.log), again=True)
    ray_tasks.RayTasks(tasks=1, device="cpu", address=cluster.address).run_all(watched.agenda)
    assert (watched.agenda.n_done, list(watched.agenda.problems)) == (0, [bad.name])
    end = time.monotonic() + 60
    while psutil.pid_exists(int(endless.log.read_text())):
        assert time.monotonic() < end
        time.sleep(0.05)
