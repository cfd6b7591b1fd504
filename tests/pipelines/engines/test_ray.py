"""Tasks in a cluster of several nodes on this machine: same bytes as one process, while nodes die and join."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
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
NOTICED_SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and two nodes of one core; the fixture's user may remove and add some."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # nodes hand it on to tasks
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": NOTICED_SOON})
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def lose(cluster: Any, reached: Path, computing: Future[None]) -> None:
    """Remove the node that something has reached, and add another."""
    while not (reached.exists() and reached.read_text()) and not computing.done():
        time.sleep(0.02)
    assert not computing.done(), computing.exception()
    cluster.remove_node(next(n for n in cluster.list_all_nodes() if n.node_id == reached.read_text()), allow_graceful=False)
    cluster.add_node(num_cpus=1)
    computing.result()


def test_a_node_that_dies_in_the_middle_of_a_unit_and_one_that_joins(
    cluster: Any, load: Callable[..., Load], images: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    options = ("--on", "ray", "--tasks", 2, "--tries", 1, "--address", cluster.address)
    command = [sys.executable, "-P", "-m", "pipelines.cli", *map(str, load(1, "hang").command(images, "f", *options))]
    with ThreadPoolExecutor(1) as driver:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        lose(cluster, tmp_path / "ended-0", driver.submit(subprocess.run, command, env=environment, check=True))
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
    heads = {"stuck": "own.py:Stuck", "cls": "cls", "bad": "bad"}
    runs = [Run.writing(f"p/{name}", ("probe", "--head", head, "--out", f"p/{name}", *given)) for name, head in heads.items()]
    watched = Watched(runs, tries=1)
    engine, reached = RayTasks(tasks=2, tries=1, device="cpu"), tmp_path / "reached"
    with ThreadPoolExecutor(1) as driver:
        lose(cluster, reached, driver.submit(engine.run_all, watched.agenda))
    assert watched.agenda.n_done == 2
    assert [warning for warning in watched.warned if "bad" not in warning] == [
        "p/stuck: the machine that it was on has gone; it goes on elsewhere"
    ]
    assert watched.agenda.problems["p/bad"].startswith("unknown aggregator 'bad'")
    assert (tmp_path / "p/stuck/metrics.json").exists()
    assert "p/cls: top-1 " in " ".join(watched.said)


def test_a_stop_ends_tasks_of_an_extraction(cluster: Any, load: Callable[..., Load], images: Path, tmp_path: Path) -> None:
    given = load(5, "slow").command(images, "f", "--on", "ray", "--tasks", 1, "--address", cluster.address)
    command = [sys.executable, "-P", "-m", "pipelines.cli", *map(str, given)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        while not list((tmp_path / ".staging").rglob("units/*.json")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
    assert process.returncode == 75
    assert len(list((tmp_path / ".staging").rglob("units/*.json"))) < 5
