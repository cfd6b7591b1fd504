"""Remotes that are served here carry what is pushed, and say what went through."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.remotes import REMOTES, lacking
from tests.machines.machine import Machine, git
from tests.machines.served import DVC, commands_in


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with commands_in(tmp_path_factory.mktemp("served") / "bin", packages=DVC) as commands:
        yield commands


@pytest.mark.slow
@pytest.mark.parametrize("name", REMOTES)
def test_what_goes_through_is_counted(name: str, served: Path, tmp_path: Path) -> None:
    if reason := lacking(name):
        pytest.skip(reason)
    machine, remote = Machine(tmp_path / "machine", served=served), REMOTES[name](tmp_path / "remote")
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
        counted = remote.served()
        data = {md5 for md5, n in objects.items() if n == 1000}
        assert counted is None or {counted[md5] for md5 in data} == {1000}
    finally:
        remote.close()
