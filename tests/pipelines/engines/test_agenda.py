"""Which runs are handed out again, and what is said of those that have failed."""

import signal
from pathlib import Path

from pipelines.engines.engine import LOSSES, Run
from tests.pipelines.engines.runs import Watched

A, B = (Run.writing(f"probes/{name}", ("probe", "--head", name)) for name in "ab")


def run(tmp_path: Path, name: str, log: str) -> Run:
    """A run whose log is this one."""
    made = Run.writing(f"{tmp_path}/probes/{name}", ())
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


def test_an_error_is_final_and_its_message_is_shown_with_its_beginning(tmp_path: Path) -> None:
    lines = "\n".join(f"line {i}" for i in range(9))
    log = f"$ beyondcls probe\nerror: of an earlier time\n$ beyondcls probe\na bar\nerror: no such head\n{lines}\n"
    a = run(tmp_path, "a", log)
    b = run(tmp_path, "b", "$ beyondcls probe\nTraceback …\n  file\nValueError: of a head\nbeyondcls ended with status 1\n")
    watched = Watched([a, b])
    for status in (1, 70):  # the latter: unforeseen
        watched.agenda.ended(watched.agenda.take() or a, status)
    shown = "no such head\nline 0\nline 1\nline 2\nline 3\nline 4\n…"
    assert watched.agenda.problems[a.name] == f"{shown} (log: {a.log})"
    assert watched.agenda.problems[b.name] == f"Traceback … /   file / ValueError: of a head (log: {b.log})"
    assert str(a.log) in watched.warned[0]
    assert watched.agenda.is_done


def test_of_an_extraction_what_was_not_foreseen_is_tried_again_and_a_mistake_of_the_users_is_not(tmp_path: Path) -> None:
    a = run(tmp_path, "a", "$ beyondcls extract\nerror: RuntimeError: broken\n")
    b = run(tmp_path, "b", "$ beyondcls extract\nerror: no image\n")
    watched = Watched([a, b], tries=2, again=True)
    for expected, status in ((a, 70), (a, 70), (b, 1)):
        assert watched.agenda.take() is expected
        watched.agenda.ended(expected, status)
    assert watched.agenda.is_done
    assert all(words in watched.agenda.problems[a.name] for words in ("2 times", "RuntimeError: broken"))
    assert watched.agenda.problems[b.name].startswith("no image (log: ")


def test_results_of_the_last_time_are_said(tmp_path: Path) -> None:
    name = f"{tmp_path}/probes/a"
    last = f"a bar\n{name}: top-1 50\n{name}b: no\n{name}/c: mAP 3\n"
    a = run(tmp_path, "a", f"$ beyondcls probe\n{name}: old\n$ beyondcls probe\n{last}")
    watched = Watched([a])
    watched.agenda.ended(watched.agenda.take() or a, 0)
    assert watched.said == [f"{name}: top-1 50", f"{name}/c: mAP 3"]


def test_a_machine_that_has_gone_is_no_failure_of_a_run() -> None:
    watched = Watched([A], tries=1)
    for n in range(LOSSES):
        assert watched.agenda.take() is A, n
        assert not watched.agenda.problems
        watched.agenda.lost(A)
    assert f"gone {LOSSES} times" in watched.agenda.problems["probes/a"]
    assert "goes on elsewhere" in watched.warned[0]


def test_after_a_stop_no_more_are_handed_out() -> None:
    stopped: list[bool] = []
    watched = Watched([A, B], stops=lambda: bool(stopped))
    assert watched.agenda.take() is A
    stopped.append(True)
    assert watched.agenda.take() is None
    assert not watched.agenda.is_done, "one runs"
    watched.agenda.ended(A, 75)
    assert (watched.agenda.is_done, watched.agenda.n_done, watched.agenda.problems) == (True, 0, {})
