"""Two machines that examine a folder: two processes of this one."""

import json
import os
import shutil
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pipelines.doctor import peer
from pipelines.doctor.coherence import Steps, examine
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from store.errors import BeyondClsError
from store.writing import lock
from tests.forked import CONTEXT, start
from tests.pipelines.doctor.said import says
from tests.store.leased import without_locks


def visit(folder: Path, code: str, answer: Connection, locks: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if locks == "none":
            without_locks(patch)
        elif locks == "of this node":  # they say yes to everybody
            patch.setattr(lock, "take", lambda file, shared=False, wait=False: None)
        try:
            answer.send(list(peer.visit(Machine(folder), code)))
        except BeyondClsError as error:
            answer.send(str(error))


def code_of(line: str) -> str:
    assert line.startswith("waiting; on the other machine, in this project: beyondcls doctor --peer ")
    return line.split()[-1]


def both(folder: Path, locks: str = "") -> tuple[list[Finding], list[Finding]]:
    """What the listener finds, and what the other process does."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    processes = []

    def say(line: str) -> None:
        processes.append(start(visit, folder, code_of(line), sender, locks))

    findings = list(peer.listen(Machine(folder), say))
    sender.close()
    theirs = receiver.recv()
    processes[0].join()
    assert list(folder.iterdir()) == [], "nothing is left"
    return findings, theirs


def test_one_folder(tmp_path: Path) -> None:
    findings, theirs = both(tmp_path)
    assert theirs == findings
    assert [f.name for f in findings] == ["locks", "new files", "exclusive files"]
    for finding, words in zip(findings, ("was refused while", "whole, within", "the second is told"), strict=True):
        says(finding, "ok", words)


def test_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks in another folder says so; the one who waits is not disturbed."""
    monkeypatch.setattr(peer, "LOST_S", 0.1)
    monkeypatch.setattr(peer, "WAIT_S", 0.3)
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    findings: list[Finding] = []
    with pytest.raises(BeyondClsError, match=r"does not answer within 0\.3 s; start both again"):
        list(peer.listen(Machine(one), lambda line: findings.extend(peer.visit(Machine(other), code_of(line)))))
    says(*findings, "problem", f"does not see in {other} what", "not the same files", "on the file system that they share")
    assert [*one.iterdir(), *other.iterdir()] == [], "nothing is left"


def test_locks_that_hold_on_each_machine_alone(tmp_path: Path) -> None:
    (locks, *_), theirs = both(tmp_path, "of this node")
    says(locks, "problem", "held one lock at the same time", "nolock", "-o flock", "let one machine at a time")
    assert theirs[0] == locks


def test_locks_on_one_machine_and_leases_on_the_other(tmp_path: Path) -> None:
    (locks, *_), _ = both(tmp_path, "none")
    says(locks, "problem", "one has file locks, the other has none", "same options on both")


class Broken(Steps):
    """A side on a file system with a fault."""

    def __init__(self, folder: Path, **outcomes: str):
        super().__init__(folder, "b")
        self._outcomes = outcomes

    def do(self, step: str) -> str:
        outcome = super().do(step)
        return self._outcomes.get(step, outcome)


@pytest.mark.parametrize(
    ("outcomes", "index", "state", "words"),
    [
        ({"take": "failed (No locks available)"}, 0, "problem", "b cannot lock: failed (No locks available)"),
        ({"see_file": "never"}, 1, "problem", "b does not see a file that a has named 60 s ago (never)"),
        ({"see_file": "31.2"}, 1, "note", "seen by the other after 31.2 s"),
        ({"name_file": "failed (Read-only file system)"}, 1, "problem", "b cannot write"),
        ({"make_first": "made"}, 2, "problem", "O_EXCL: a: made; b, afterwards: made"),
    ],
)
def test_what_does_not_hold(outcomes: dict[str, str], index: int, state: str, words: str, tmp_path: Path) -> None:
    findings = list(examine(Steps(tmp_path, "a"), Broken(tmp_path, **outcomes)))
    says(findings[index], state, words)


def test_leases_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    locks, *_ = examine(Steps(tmp_path, "a"), Steps(tmp_path, "b"))
    says(locks, "note", "leases keep the others out", "-o flock")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """As a listener makes it."""
    folder = tmp_path / f"{peer.PREFIX}peer-abcd1234"
    (folder / peer.MESSAGES).mkdir(parents=True)
    (folder / peer.EXAMINED).mkdir()
    return folder


STRANGE = (b"GET / HTTP/1.1\r\n", b"[" * 10**5, b"x" * 10**5, b"7", b"[]", b"\xff", b"")


@pytest.mark.parametrize("content", STRANGE, ids=range(len(STRANGE)))
def test_what_is_no_message(content: bytes, scratch: Path) -> None:
    (scratch / peer.MESSAGES / "1").write_bytes(content)
    with pytest.raises(BeyondClsError, match="is no beyondcls doctor, or of another version; start both again"):
        peer._Messages(scratch / peer.MESSAGES).receive(1)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_message_is_a_file(kind: str, scratch: Path) -> None:
    message = scratch / peer.MESSAGES / "1"
    if kind == "link":
        (scratch / "elsewhere").write_text('{"host": "b"}')
        message.symlink_to(scratch / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(message)
    else:
        message.mkdir()
    with pytest.raises(BeyondClsError, match="is a link, or no file"):
        peer._Messages(scratch / peer.MESSAGES).receive(0.1)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([{"do": "__class__"}], "asks for '__class__', expected one of: take, release"),
        ([{"do": ["take"]}], r"asks for .*, expected one of"),
        ([{"findings": [{"name": "x"}]}], "is no beyondcls doctor"),
        ([{"findings": [{"name": "x", "state": "bad", "found": "", "remedy": ""}]}], "is no beyondcls doctor"),
        ([{"findings": 3}], "is no beyondcls doctor"),
    ],
)
def test_a_listener_that_is_none(messages: list[dict[str, object]], error: str, scratch: Path) -> None:
    """It can have nothing done but the steps, in a folder of doctor's."""
    for number, message in enumerate(messages):
        (scratch / peer.MESSAGES / f"{2 * number + 2}").write_text(json.dumps(message))
    with pytest.raises(BeyondClsError, match=error):
        list(peer.visit(Machine(scratch.parent), "abcd1234"))
    assert list((scratch / peer.EXAMINED).iterdir()) == []


def test_a_listener_that_goes(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is not made again."""

    def gone(path: str, _: int) -> int:
        shutil.rmtree(scratch)
        raise FileNotFoundError(path)

    monkeypatch.setattr(peer, "open_own", gone)
    (scratch / peer.MESSAGES / "2").write_text("{}")
    with pytest.raises(BeyondClsError, match="has ended the examination; start both again"):
        list(peer.visit(Machine(scratch.parent), "abcd1234"))
    with pytest.raises(BeyondClsError, match=r"cannot be written .*: the other machine is gone; start again"):
        peer._Messages(scratch / peer.MESSAGES).send(host="b")
    assert not scratch.exists()


def test_nobody_listens_to_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a socket")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(peer, "WAIT_S", 0.1)
    modes: list[int] = []
    with pytest.raises(BeyondClsError, match="does not answer"):
        list(peer.listen(Machine(tmp_path), lambda _: modes.extend(p.stat().st_mode & 0o777 for p in tmp_path.iterdir())))
    assert modes == [0o700]


def test_what_the_other_machine_says_cannot_move_the_cursor() -> None:
    assert peer._text("a\x1b[2Jb\n" + "c" * 5000) == "a[2Jb" + "c" * (1000 - 7)


@pytest.mark.parametrize("code", ["", "a", "../etc/xy", "abcd123/", "ABCD1234", "10.0.0.1:8", "abcd12345"])
def test_no_codes(code: str, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match="is no code, expected the 8 characters"):
        list(peer.visit(Machine(tmp_path), code))


def test_the_command(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    problem = Finding("locks", "problem", "broken", "mend it")
    monkeypatch.setattr(peer, "visit", lambda machine, code: iter([problem]) if code == "abcd1234" else iter([]))
    status, out, _ = command("doctor", "--peer", "abcd1234")
    assert (status, out.splitlines()[-1]) == (1, "0 ok, 0 notes, 1 problem")
    assert "problem: broken" in out
    assert "--listen is for one machine" in command("doctor", "--peer", "a", "--listen")[2]
