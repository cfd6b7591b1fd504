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
    git(tmp_path, "init", "-q")
    for file, text in (("dvc.yaml", STAGES), ("params.yaml", PARAMS), ("given", "something")):
        (tmp_path / file).write_text(text)

    def dvc(*arguments: str, quick: bool) -> str:
        command = [sys.executable, *(["-P", str(QUICK_DVC)] if quick else ["-m", "dvc"]), *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    dvc("init", "-q", quick=True)
    dvc("repro", quick=True)
    dvc("repro", "--force", "each@a", quick=True)
    quick = (tmp_path / "dvc.lock").read_text()
    assert "Data and pipelines are up to date" in dvc("repro", quick=False)
    (tmp_path / "dvc.lock").unlink()
    dvc("repro", quick=False)
    plain = (tmp_path / "dvc.lock").read_text()
    assert quick != plain, "the quick way was not taken"
    of_quick, of_plain = map(loads_yaml, (quick, plain))  # by DVC's own reader
    assert of_quick == of_plain
    assert list(of_quick["stages"]) == list(of_plain["stages"])
