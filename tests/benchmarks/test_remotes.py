"""Remotes that are served here carry what is pushed, and say what went through."""

import shutil
from pathlib import Path

import pytest

from benchmarks.remotes import REMOTES, lacking
from tests.machines.machine import Machine, git


@pytest.mark.slow
@pytest.mark.parametrize("name", REMOTES)
def test_what_goes_through_is_counted(name: str, tmp_path: Path) -> None:
    if reason := lacking(name):
        pytest.skip(reason)
    machine, remote = Machine(tmp_path / "machine"), REMOTES[name](tmp_path / "remote")
    try:
        (machine.repo / "data").mkdir(parents=True)
        (machine.repo / "data/file").write_bytes(bytes(1000))
        git(machine.repo, "init", "-q")
        machine.dvc("init", "-q")
        machine.dvc("add", "-q", "data")
        remote.add_to(machine)
        machine.dvc("push")
        objects = machine.cached()
        assert remote.received() == sum(objects.values())
        for place in ("data", ".dvc/cache"):
            shutil.rmtree(machine.repo / place)
        machine.dvc("pull")
        assert machine.cached() == objects
        served = remote.served()
        assert served is None or {md5: served[md5] for md5, n in objects.items() if n == 1000} == {
            md5: 1000 for md5, n in objects.items() if n == 1000
        }
    finally:
        remote.close()
