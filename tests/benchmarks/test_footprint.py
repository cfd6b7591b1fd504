"""What a command takes is that of all its processes."""

import sys

import pytest

from benchmarks.footprint import folder_nbytes, footprint

CHILD = "import time; held = b'x' * 60_000_000; began = time.process_time()\nwhile time.process_time() < began + 0.3: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}]); print('a line'); print('{{\"n\": 3}}')"


def test_a_process_that_is_started_counts() -> None:
    taken = footprint([sys.executable, "-c", PARENT])
    assert taken.printed == {"n": 3}
    assert taken.cpu_s > 0.3
    assert taken.peak_nbytes > 60_000_000


def test_the_environment_is_passed_on_and_a_last_line_need_not_be_json() -> None:
    program = "import json, os; print(json.dumps({'said': os.environ['SAID']}))"
    assert footprint([sys.executable, "-c", program], {"SAID": "yes"}).printed == {"said": "yes"}
    for last in ("done", "[1]", ""):
        assert footprint([sys.executable, "-c", f"print({last!r})"]).printed == {}


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        footprint([sys.executable, "-c", "raise ValueError('no such thing')"])


def test_bytes_of_a_folder(tmp_path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/a").write_bytes(b"123")
    (tmp_path / "b").write_bytes(b"4567")
    assert folder_nbytes(tmp_path) == 7
