"""What is said where Ray cannot be used, and what each worker gets of its nodes."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.engines.ray_tasks import Share, connected
from store import BeyondClsError
from tests.machines.project import ROOT


class RayError(Exception):
    """The base of Ray's own errors, of which that of authentication is one."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RayError("Token authentication is enabled but Ray couldn't find an authentication token"),
            r"^the Ray cluster at ray://head:10001 cannot be used \(Token authentication .*\); put the cluster's token into "
            r"~/.ray/auth_token or RAY_AUTH_TOKEN, on this machine and with RAY_AUTH_MODE=token; or unset RAY_AUTH_MODE",
        ),
        (
            ConnectionError("ray client connection timeout"),
            r"^no Ray cluster can be used at ray://head:10001 \(ray client .*\); start one .* If it asks for a token: put the",
        ),
    ],
)
def test_a_cluster_that_does_not_let_us_in(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise error

    exceptions = SimpleNamespace(RayError=RayError)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=exceptions))
    with pytest.raises(BeyondClsError, match=message), connected("ray://head:10001"):
        pass


def test_workers_do_not_import_from_the_folder_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray puts the folder in which it is initialised on their path."""
    monkeypatch.chdir(tmp_path)
    folders = list[Path]()
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: folders.append(Path.cwd()), shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with connected(None):
        assert Path.cwd() == tmp_path
    assert folders == [ROOT]


CPUS = [{"CPU": 16.0}, {"CPU": 3.0}]
GPUS = [{"CPU": 8.0}, {"CPU": 8.0, "GPU": 4.0}]


def test_a_share_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert Share.of_each("auto", None, GPUS) == Share(1, 1)
    assert Share.of_each("cpu", None, GPUS) == Share(4, 0)
    assert Share.of_each("auto", None, CPUS) == Share(3, 0), "which fits on every node"
    assert Share.of_each("auto", 10, CPUS) == Share(1, 0), "so many at a time"
    assert Share.of_each("cuda", None, []) == Share(1, 1), "nodes with GPUs may come"
    assert (Share(1, 1).n_threads, Share(3, 0).n_threads) == (None, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert Share(3, 0).n_threads == 2
