"""Commands that a process answers end, fail and are killed as others are."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.machines.served import commands_in


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with commands_in(tmp_path_factory.mktemp("served") / "bin", packages=()) as commands:
        yield commands / "python"


def ended(python: Path, folder: Path, script: str) -> tuple[int, str, str]:
    """Exit status of a script, and what it wrote."""
    (folder / "script.py").write_text(script)
    environment = {**os.environ, "GIVEN": "something"}
    done = subprocess.run([python, "-u", "script.py", "a b"], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_arguments_environment_and_status_are_its_own(python: Path, tmp_path: Path) -> None:
    script = "import os, sys\nprint(sys.argv, os.environ['GIVEN'], os.getcwd())\nsys.exit(3)\n"
    assert ended(python, tmp_path, script) == (3, f"['script.py', 'a b'] something {tmp_path}\n", "")
    assert ended(python, tmp_path, "import sys\nsys.exit('a mistake')") == (1, "", "a mistake\n")
    assert ended(python, tmp_path, "") == (0, "", "")


def test_an_error_is_shown(python: Path, tmp_path: Path) -> None:
    status, _, shown = ended(python, tmp_path, "raise ValueError('a mistake')")
    assert status == 1
    assert shown.endswith("ValueError: a mistake\n")


def test_one_starts_another(python: Path, tmp_path: Path) -> None:
    script = f"import subprocess, sys\nsys.exit(subprocess.run([{str(python)!r}, '-m', 'nothing.there']).returncode)\n"
    status, _, shown = ended(python, tmp_path, script)
    assert status == 1
    assert "No module named" in shown


def test_one_that_is_killed_ends(python: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, time\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')\ntime.sleep(600)"
    )
    with subprocess.Popen([python, "script.py"], cwd=tmp_path) as process:
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    number = int((tmp_path / "pid").read_text())
    with suppress(psutil.NoSuchProcess):
        psutil.Process(number).wait(timeout=20)
