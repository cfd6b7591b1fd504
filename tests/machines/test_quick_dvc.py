"""DVC with a quicker way to write dvc.lock writes the same one."""

import subprocess
import sys
from pathlib import Path

import pytest
from dvc.utils.serialize import loads_yaml

from tests.machines.machine import QUICK_DVC, git

STAGES = """\
stages:
  each:
    matrix: {name: [a, b]}
    cmd: mkdir -p out/${item.name} && cp params.yaml out/${item.name}
    deps: [given]
    params: [nested, list]
    outs:
      - out/${item.name}
  all:
    cmd: ls out > names
    deps: [out/a, out/b]
    outs: [names]
"""
PARAMS = "nested: {z: 1, a: [1.5, null, true, 'no', '1']}\nlist: [{b: 2, a: 1e-3}, {b: 2, a: 1e-3}]\n"


@pytest.mark.slow
def test_the_lock_is_the_same(tmp_path: Path) -> None:
    locks = []
    for name, dvc in (("plain", ["-m", "dvc"]), ("quick", ["-P", str(QUICK_DVC)])):
        folder = tmp_path / name
        folder.mkdir()
        git(folder, "init", "-q")
        for file, text in (("dvc.yaml", STAGES), ("params.yaml", PARAMS), ("given", "something")):
            (folder / file).write_text(text)
        for command in (["init", "-q"], ["repro", "-q"], ["repro", "-q", "--force", "each@a"]):
            subprocess.run([sys.executable, *dvc, *command], cwd=folder, check=True)
        locks.append((folder / "dvc.lock").read_text())
    plain, quick = map(loads_yaml, locks)  # by DVC's own reader
    assert quick == plain
    assert list(quick["stages"]) == list(plain["stages"])
    assert locks[0] != locks[1], "the quick way was not taken"
    shown = subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=tmp_path / "quick", capture_output=True, text=True)
    assert "Data and pipelines are up to date" in shown.stdout
