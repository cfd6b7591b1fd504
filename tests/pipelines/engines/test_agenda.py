"""Which runs are handed out again, and what is said of those that have failed."""

import signal
from pathlib import Path

import pytest

from pipelines.engines.engine import LOSSES, Run
from tests.pipelines.engines.runs import Watched

A, B = (Run.writing(f"probes/{name}", ("probe", "--head", name)) for name in "ab")


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, log: str = "") -> Run:
    """A run whose log is this one."""
    made = Run.writing(f"probes/{name}", ("probe", "--head", name))
    made.log.parent.mkdir(parents=True, exist_ok=True)
    made.log.write_text(log)
    return made


def test_a_run_that_is_killed_is_next_until_it_was_too_often() -> None:
    watched = Watched([A, B], tries=2)
    agenda = watched.agenda
    assert Run.writing("probes/a/", ()).log == Path.cwd() / "probes/.runs/a.log", "beside what it writes"
    assert agenda.take() is A
    agenda.ended(A, -signal.SIGKILL)
    assert ["SIGKILL" in line for line in watched.warned] == [True]
    assert agenda.take() is A
    agenda.ended(A, 128 + signal.SIGTERM)  # as a shell says it
    assert ["2 times" in problem and "SIGTERM" in problem for problem in agenda.problems.values()] == [True]
    assert agenda.take() is B
    assert agenda.take() is None
    assert not agenda.is_done
    agenda.ended(B, 0)
    assert (agenda.is_done, agenda.n_done, watched.steps) == (True, 1, [1, 1])


def test_an_error_is_final_and_its_message_is_shown_with_its_beginning() -> None:
    lines = "\n".join(f"line {i}" for i in range(9))
    a = run("a", f"$ beyondcls probe\nerror: of an earlier time\n$ beyondcls probe\na bar\nerror: no such head\n{lines}\n")
    b = run("b", "$ beyondcls probe\nTraceback …\n  file\nValueError: of a head\nbeyondcls ended with status 1\n")
    watched = Watched([a, b])
    for _ in range(2):
        watched.agenda.ended(watched.agenda.take() or a, 1)
    shown = "no such head\nline 0\nline 1\nline 2\nline 3\nline 4\n…"
    assert watched.agenda.problems["probes/a"] == f"{shown} (log: {a.log})"
    assert watched.agenda.problems["probes/b"] == f"Traceback … /   file / ValueError: of a head (log: {b.log})"
    assert watched.warned[0] == f"probes/a: failed; see {a.log}"
    assert watched.agenda.is_done


def test_of_an_extraction_what_was_not_foreseen_is_tried_again_and_a_mistake_of_the_users_is_not() -> None:
    a, b = run("a", "$ beyondcls extract\nerror: RuntimeError: broken\n"), run("b", "$ beyondcls extract\nerror: no image\n")
    watched = Watched([a, b], tries=2, again=True)
    for expected, status in ((a, 70), (a, 70), (b, 1)):
        assert watched.agenda.take() is expected
        watched.agenda.ended(expected, status)
    assert watched.agenda.is_done
    assert "2 times" in watched.agenda.problems[a.name]
    assert "RuntimeError: broken" in watched.agenda.problems[a.name]
    assert watched.agenda.problems[b.name].startswith("no image (log: ")


def test_results_of_the_last_time_are_said() -> None:
    a = run(
        "a",
        "$ beyondcls probe\nprobes/a: old\n$ beyondcls probe\na bar\nprobes/a: top-1 50\nprobes/ab: no\nprobes/a/c: mAP 3\n",
    )
    watched = Watched([a])
    watched.agenda.ended(watched.agenda.take() or a, 0)
    assert watched.said == ["probes/a: top-1 50", "probes/a/c: mAP 3"]


def test_a_machine_that_has_gone_is_no_failure_of_a_run() -> None:
    watched = Watched([A], tries=1)
    for _ in range(LOSSES - 1):
        assert watched.agenda.take() is A
        watched.agenda.lost(A)
    assert not watched.agenda.problems
    assert watched.agenda.take() is A
    watched.agenda.lost(A)
    assert "the machine that it was on has gone 20 times" in watched.agenda.problems["probes/a"]


def test_after_a_stop_no_more_are_handed_out() -> None:
    stopped: list[bool] = []
    watched = Watched([A, B], stops=lambda: bool(stopped))
    assert watched.agenda.take() is A
    stopped.append(True)
    assert watched.agenda.take() is None
    assert not watched.agenda.is_done, "one runs"
    watched.agenda.ended(A, 75)
    assert (watched.agenda.is_done, watched.agenda.n_done, watched.agenda.problems) == (True, 0, {})
