"""Tasks in a cluster of several nodes on this machine: same bytes as one process, while nodes die and join."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pipelines.engines.engine import Run
from pipelines.engines.ray_tasks import RayTasks
from tests.features import write_features
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
    """A head that computes nothing, and two nodes of one core; each test may remove one and needs one."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # nodes hand it on to tasks
        head = {"num_cpus": 0, "no_monitor": True, "include_dashboard": False, "_system_config": SYSTEM}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster
        cluster.shutdown()


@contextmanager
def meanwhile(begun: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Do this, once, when something has begun; it must have by the end."""
    ended = Event()

    def wait() -> None:
        while not begun():
            assert not ended.wait(0.02)
        act()

    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(wait)
        try:
            yield
        finally:
            ended.set()
        acting.result()


def lost(cluster: Any, reached: Path) -> None:
    """Remove the node that something has reached."""
    (node,) = (node for node in cluster.list_all_nodes() if node.node_id == reached.read_text())
    cluster.remove_node(node, allow_graceful=False)


def has_text(file: Path) -> bool:
    return file.exists() and bool(file.read_text())


def test_a_node_that_dies_in_the_middle_of_a_unit_and_one_that_joins(
    cluster: Any, command: Command, load: Callable[..., Load], images: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    def replace_node() -> None:
        lost(cluster, reached)
        cluster._shutdown_at_exit = False  # or it handles signals, and ends with its thread
        cluster.add_node(num_cpus=1)

    reached = tmp_path / "ended-0"
    options = ("--on", "ray", "--tasks", 2, "--tries", 1, "--address", cluster.address)
    with meanwhile(lambda: has_text(reached), replace_node):
        status, out, err = command(*load(1, "hang").command(images, "f", *options))
    assert status == 0, out + err
    assert files(tmp_path / "f") == whole
    assert not (tmp_path / ".staging").exists(), "nothing is left behind"


# Stays in its first step, once, and says where.
STUCK = """\
import time
from pathlib import Path

import ray
from beyondcls import AbMILP


class Stuck(AbMILP):
    def forward(self, features):
        here = Path(__file__).parent / "reached"
        if not here.exists():
            here.write_text(ray.get_runtime_context().get_node_id())
            time.sleep(600)
        return super().forward(features)
"""


def test_a_node_that_dies_in_the_middle_of_a_run(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_features(tmp_path / "train", 64)
    write_features(tmp_path / "test", 48, seed=1)
    (tmp_path / "own.py").write_text(STUCK)
    short = ("--epochs", "2", "--warmup-epochs", "0", "--device", "cpu")
    given = ("--features", "train", "--test", "test", *short, "--on", "here")
    heads = {"stuck": "own.py:Stuck", "bad": "bad"}
    runs = [Run.writing(f"p/{name}", ("probe", "--head", head, "--out", f"p/{name}", *given)) for name, head in heads.items()]
    watched, reached = Watched(runs, tries=1), tmp_path / "reached"
    with meanwhile(lambda: has_text(reached), lambda: lost(cluster, reached)):
        RayTasks(tasks=2, tries=1, device="cpu", address=cluster.address).run_all(watched.agenda)
    assert watched.agenda.n_done == 1
    assert [warning for warning in watched.warned if "bad" not in warning] == [
        "p/stuck: the machine that it was on has gone; it goes on elsewhere"
    ]
    assert watched.agenda.problems["p/bad"].startswith("unknown aggregator 'bad'")
    assert (tmp_path / "p/stuck/metrics.json").exists()
    assert "p/stuck: top-1 " in " ".join(watched.said)


def test_a_stop_ends_tasks_of_an_extraction(
    cluster: Any, command: Command, load: Callable[..., Load], images: Path, tmp_path: Path
) -> None:
    def units() -> list[Path]:
        return list((tmp_path / ".staging").rglob("units/*.json"))

    given = load(5, "slow").command(images, "f", "--on", "ray", "--tasks", 1, "--address", cluster.address)
    with meanwhile(lambda: bool(units()), lambda: os.kill(os.getpid(), signal.SIGUSR1)):
        status, _, _ = command(*given)
    assert status == 75
    assert len(units()) < 5
