"""Two machines that examine a folder: two processes of this one."""

import contextlib
import json
import socket
import threading
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


def visit(folder: Path, port: int, answer: Connection, locks: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if locks == "none":
            without_locks(patch)
        elif locks == "of this node":  # they say yes to everybody
            patch.setattr(lock, "take", lambda file, shared=False, wait=False: None)
        try:
            answer.send(list(peer.visit(Machine(folder), f"127.0.0.1:{port}")))
        except BeyondClsError as error:
            answer.send(str(error))


def both(one: Path, other: Path, locks: str = "") -> tuple[list[Finding], list[Finding]]:
    """What the listener finds, and what the other process does."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    processes = []

    def say(line: str) -> None:
        assert line.startswith("waiting; on the other machine: beyondcls doctor --peer 127.0.0.1:")
        processes.append(start(visit, other, int(line.rpartition(":")[2]), sender, locks))

    findings = list(peer.listen(Machine(one), "127.0.0.1:0", say))
    sender.close()
    theirs = receiver.recv()
    processes[0].join()
    assert [p.name for p in one.iterdir()] == [], "nothing is left"
    return findings, theirs


def test_one_folder(tmp_path: Path) -> None:
    findings, theirs = both(tmp_path, tmp_path)
    assert theirs == findings
    assert [f.name for f in findings] == ["locks", "new files", "exclusive files"]
    for finding, words in zip(findings, ("was refused while", "whole, within", "the second is told"), strict=True):
        says(finding, "ok", words)


def test_two_folders(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    findings, theirs = both(one, other)
    assert theirs == findings
    says(
        *findings,
        "problem",
        f"does not see in {other} what",
        f"in {one}: not the same files",
        "on the file system that they share",
    )


def test_locks_that_hold_on_each_machine_alone(tmp_path: Path) -> None:
    (locks, *_), theirs = both(tmp_path, tmp_path, "of this node")
    says(locks, "problem", "held one lock at the same time", "nolock", "-o flock", "let one machine at a time")
    assert theirs[0] == locks


def test_locks_on_one_machine_and_leases_on_the_other(tmp_path: Path) -> None:
    (locks, *_), _ = both(tmp_path, tmp_path, "none")
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


STRANGE = (b"GET / HTTP/1.1\r\n\r\n", b"[" * 10**5 + b"\n", b"x" * 10**5, b"7\n", b'{"proof": "0"}\n', b'{"proof": 1}\n', b"")


def test_strangers_are_sent_away(tmp_path: Path) -> None:
    """Whatever they say, the one who sees the files is served; nothing is done for them."""

    def say(line: str) -> None:
        port = int(line.rpartition(":")[2])

        def come() -> None:
            for words in STRANGE:
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    greeting = json.loads(stranger.makefile().readline())
                    assert set(greeting) == {"scratch", "nonce", "host"}
                    with contextlib.suppress(OSError):  # it is sent away before it has said all
                        stranger.sendall(words)
                        stranger.shutdown(socket.SHUT_WR)
            answers.extend(peer.visit(Machine(tmp_path), f"127.0.0.1:{port}"))

        threads.append(threading.Thread(target=come))
        threads[0].start()

    answers: list[Finding] = []
    threads: list[threading.Thread] = []
    findings = list(peer.listen(Machine(tmp_path), "127.0.0.1:0", say))
    threads[0].join()
    assert answers == findings
    assert len(findings) == 3


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([{"scratch": "../elsewhere", "nonce": ""}], "of another version"),
        ([{"scratch": "/etc", "nonce": ""}], "of another version"),
        ([{"scratch": "SCRATCH", "nonce": ""}, {"do": "__class__"}], "asks for '__class__', expected one of: take, release"),
        ([{"scratch": "SCRATCH", "nonce": ""}, {"do": ["take"]}], r"asks for .*, expected one of"),
        ([{"scratch": "SCRATCH", "nonce": ""}, {"findings": [{"name": "x"}]}], "is no beyondcls doctor"),
        ([{"scratch": "SCRATCH", "nonce": ""}], "has ended the conversation"),
    ],
)
def test_a_listener_that_is_none(messages: list[dict[str, object]], error: str, tmp_path: Path) -> None:
    """It can have nothing done but the steps, in a folder of doctor's."""
    scratch = tmp_path / f"{peer.PREFIX}peer-abcd1234"
    scratch.mkdir()
    (scratch / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for message in messages:
                    connection.sendall(json.dumps(message).replace("SCRATCH", scratch.name).encode() + b"\n")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(BeyondClsError, match=error):
            list(peer.visit(Machine(tmp_path), f"127.0.0.1:{server.getsockname()[1]}"))
        thread.join()


def test_a_message_without_an_end() -> None:
    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"x" * 2 * peer._LONGEST)
        with pytest.raises(BeyondClsError, match="or is no beyondcls doctor; start both again"):
            peer._Line(one).receive(0.5)


def test_what_the_other_machine_says_cannot_move_the_cursor() -> None:
    assert peer._text("a\x1b[2Jb\n" + "c" * 5000) == "a[2Jb" + "c" * (1000 - 7)


def test_silence_and_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "GREETING_S", 0.1)
    monkeypatch.setattr(peer, "WAIT_S", 0.1)
    with pytest.raises(BeyondClsError, match=r"nobody came within 0\.1 s"):
        list(peer.listen(Machine(tmp_path), "127.0.0.1:0", lambda line: None))
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BeyondClsError, match="does not answer"):
            list(peer.visit(Machine(tmp_path), where))
        with pytest.raises(BeyondClsError, match=r"cannot listen at 127\.0\.0\.1"):
            list(peer.listen(Machine(tmp_path), where, lambda line: None))
    with pytest.raises(BeyondClsError, match=r"cannot be reached .*; start `beyondcls doctor --listen \d+` there first"):
        list(peer.visit(Machine(tmp_path), where))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("node7", ("node7", 47110)),
        ("10.0.0.1:8", ("10.0.0.1", 8)),
        (":8", ("", 8)),
        ("[::1]:8", ("::1", 8)),
        ("[::1]", ("::1", 47110)),
    ],
)
def test_addresses(where: str, expected: tuple[str, int]) -> None:
    assert peer.parsed(where) == expected


@pytest.mark.parametrize("where", ["a:b", "a:70000", "::1", "a b"])
def test_no_addresses(where: str) -> None:
    with pytest.raises(BeyondClsError, match="is no address, expected HOST, HOST:PORT"):
        peer.parsed(where)


def test_the_command(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    problem = Finding("locks", "problem", "broken", "mend it")
    monkeypatch.setattr(peer, "visit", lambda machine, where: iter([problem]) if where == "node7" else iter([]))
    status, out, _ = command("doctor", "--peer", "node7")
    assert (status, out.splitlines()[-1]) == (1, "0 ok, 0 notes, 1 problem")
    assert "problem: broken" in out
    assert "--listen is for one machine" in command("doctor", "--peer", "a", "--listen", "1")[2]
