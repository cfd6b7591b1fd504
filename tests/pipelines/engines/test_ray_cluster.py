"""What is said where Ray cannot be used, and what each worker gets of its nodes."""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pipelines.engines.ray_tasks import connected_to_ray, share_of
from store import BeyondClsError
from tests.machines.project import ROOT


class RayError(Exception):
    """The base of Ray's own errors, of which that of authentication is one."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RayError("no token"), r"Ray cluster at ray://head:10001 cannot be used \(no token\); put .*RAY_AUTH_TOKEN"),
        (ConnectionError("timeout"), r"no Ray cluster .* ray://head:10001 \(timeout\); start one .*RAY_AUTH_TOKEN"),
    ],
)
def test_a_cluster_that_does_not_let_us_in(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions, init = SimpleNamespace(RayError=RayError), Mock(side_effect=error)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=exceptions))
    with pytest.raises(BeyondClsError, match=message), connected_to_ray("ray://head:10001"):
        pass


def test_workers_do_not_import_from_the_folder_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray puts the folder in which it is initialised on their path."""
    monkeypatch.chdir(tmp_path)
    folders = list[Path]()
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: folders.append(Path.cwd()), shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with connected_to_ray(None):
        assert Path.cwd() == tmp_path
    assert folders == [ROOT]


def test_a_share_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus, gpus = [{"CPU": 16.0}, {"CPU": 3.0}], [{"CPU": 8.0}, {"CPU": 8.0, "GPU": 4.0}]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert share_of("auto", None, gpus) == share_of("cuda", None, []) == (1, 1, None), "nodes with GPUs may come"
    assert share_of("cpu", None, gpus) == (4, 0, 4)
    assert share_of("auto", None, cpus) == (3, 0, 3), "which fits on every node"
    assert share_of("auto", 10, cpus) == (1, 0, 1), "so many at a time"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert share_of("auto", None, cpus) == (3, 0, 2)
    assert share_of("auto", None, gpus) == (1, 1, None)
