"""`beyondcls doctor --listen` and `--peer`: two machines examine a folder that both have.

The listener makes a scratch folder and waits. A peer that shows that it can read a token in that folder has the same files;
then the listener has both sides take the steps of `coherence`, and sends what was found. Messages are lines of JSON of limited
length and time; a peer is asked for nothing but these steps, by name, in that folder; and the listener is asked for nothing.
"""

import hashlib
import hmac
import json
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.doctor.coherence import LOST_S, STEPS, Steps, examine
from pipelines.doctor.file_system import PREFIX
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine, existing
from store.errors import BeyondClsError

PORT = 47110
WAIT_S = 600.0  # for a peer
ANSWER_S = LOST_S + 30  # the longest step, and a lease that stands still
GREETING_S = 10.0  # a stranger who says nothing is not waited for
_LONGEST = 1 << 14  # bytes of a message
_SCRATCH = re.compile(re.escape(f"{PREFIX}peer-") + r"[a-z0-9_]{8}")
_SAME = "run both in the same project, on the file system that they share"


class _Line:
    """A connection that carries a JSON object a line.

    Raises:
        BeyondClsError: the other side is gone, or says something else.
    """

    def __init__(self, connection: socket.socket):
        self._connection, self._buffer = connection, b""

    def send(self, **message: Any) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise BeyondClsError(f"the other machine is gone ({error}); start both again") from error

    def receive(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            try:
                self._connection.settimeout(max(0.01, deadline - time.monotonic()))
                received = self._connection.recv(_LONGEST)
            except OSError as error:
                raise BeyondClsError(f"the other machine does not answer ({error or 'timed out'}); start both again") from error
            self._buffer += received
            if not received or len(self._buffer) > _LONGEST:
                raise BeyondClsError(
                    "the other machine has ended the conversation, or is no beyondcls doctor; start both again"
                )
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BeyondClsError("the other machine is no beyondcls doctor, or of another version") from error
        if not isinstance(message, dict):
            raise BeyondClsError("the other machine is no beyondcls doctor, or of another version")
        return message


class _Remote:
    """The side on the other machine."""

    def __init__(self, line: _Line, name: str):
        self.name, self._line = name, line

    def do(self, step: str) -> str:
        self._line.send(do=step)
        return _text(self._line.receive(ANSWER_S).get("done"))


def listen(machine: Machine, where: str, say: Callable[[str], object]) -> Iterator[Finding]:
    """Wait for one peer, and examine the folder with it.

    Args:
        where: ADDRESS:PORT, ADDRESS or PORT (on all addresses of this machine).
        say: is called with what to do on the other machine.

    Raises:
        BeyondClsError: it cannot listen there, nobody came, or the peer went away.
    """
    address, port = parsed(f":{where}" if where.isdecimal() else where)
    folder = existing(machine.features)
    with _listening(address, port) as server:
        scratch = Path(tempfile.mkdtemp(prefix=f"{PREFIX}peer-", dir=folder))
        try:
            token = secrets.token_hex(16)
            (scratch / "token").write_text(token)
            port = server.getsockname()[1]
            say(f"waiting; on the other machine: beyondcls doctor --peer {address or socket.gethostname()}:{port}")
            line, greeting = _peer(server, scratch.name, token)
            name = _text(greeting.get("host"))
            if "proof" in greeting:
                findings = list(examine(Steps(scratch, _here()), _Remote(line, name)))
            else:
                theirs = _text(greeting.get("folder"))
                observed = f"{name} does not see in {theirs} what {_here()} has made in {folder}: not the same files"
                findings = [Finding("same folder", "problem", observed, _SAME)]
            line.send(findings=[asdict(finding) for finding in findings])
            yield from findings
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _peer(server: socket.socket, scratch: str, token: str) -> tuple[_Line, dict[str, Any]]:
    """The first that proves to see the scratch folder, or says that it does not; strangers are sent away."""
    deadline = time.monotonic() + WAIT_S
    while (left := deadline - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            break
        line, nonce = _Line(connection), secrets.token_hex(16)
        try:
            line.send(scratch=scratch, nonce=nonce, host=_here())
            greeting = line.receive(GREETING_S)
        except BeyondClsError:
            connection.close()
            continue
        if "folder" in greeting or hmac.compare_digest(_text(greeting.get("proof")), _proof(token, nonce)):
            return line, greeting
        connection.close()
    raise BeyondClsError(f"nobody came within {WAIT_S:g} s; give beyondcls doctor --peer on the other machine meanwhile")


def visit(machine: Machine, where: str) -> Iterator[Finding]:
    """Examine the folder with a machine that listens.

    Args:
        where: HOST or HOST:PORT.

    Raises:
        BeyondClsError: nobody listens there, or the other side went away.
    """
    address, port = parsed(where)
    folder = existing(machine.features)
    try:
        connection = socket.create_connection((address, port), GREETING_S)
    except OSError as error:
        raise BeyondClsError(
            f"{address}, port {port}, cannot be reached ({error}); start `beyondcls doctor --listen {port}` there first, "
            "and let firewalls pass it"
        ) from error
    with connection:
        line = _Line(connection)
        greeting = line.receive(GREETING_S)
        scratch = folder / _text(greeting.get("scratch"))
        if not _SCRATCH.fullmatch(scratch.name) or scratch.parent != folder:
            raise BeyondClsError(f"{where} is no beyondcls doctor, or of another version")
        try:
            token = (scratch / "token").read_text()
        except OSError:
            line.send(folder=str(folder), host=_here())
        else:
            line.send(proof=_proof(token, _text(greeting.get("nonce"))), host=_here())
        yield from _findings(line, Steps(scratch, _here()))


def _findings(line: _Line, steps: Steps) -> Iterator[Finding]:
    """Take the steps that are asked for, until the findings come."""
    while "findings" not in (message := line.receive(2 * ANSWER_S)):
        step = message.get("do")
        if step not in STEPS:
            raise BeyondClsError(f"the other machine asks for {_text(step)!r}, expected one of: {', '.join(STEPS)}")
        line.send(done=steps.do(step))
    try:
        for finding in message["findings"]:
            name, state, found, remedy = (_text(finding[field]) for field in ("name", "state", "found", "remedy"))
            if state not in ("ok", "note", "problem"):
                raise ValueError(state)
            yield Finding(name, state, found, remedy)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise BeyondClsError("the other machine is no beyondcls doctor, or of another version") from error


def parsed(where: str) -> tuple[str, int]:
    """Address and port of ADDRESS:PORT, ADDRESS or :PORT.

    Raises:
        BeyondClsError: it has another form, or there is no such port.
    """
    matched = re.fullmatch(r"\[([0-9a-fA-F:.%\w]+)\](?::(\d{1,5}))?|([^:\s\[\]]*)(?::(\d{1,5}))?", where)
    port = int((matched and (matched[2] or matched[4])) or PORT)
    if not matched or port > 65535:
        raise BeyondClsError(f"{where!r} is no address, expected HOST, HOST:PORT, or [IPV6]:PORT with a port up to 65535")
    return matched[1] or matched[3] or "", port


def _listening(address: str, port: int) -> socket.socket:
    try:
        if not address:
            dual = socket.has_dualstack_ipv6()
            return socket.create_server(("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise BeyondClsError(
            f"cannot listen at {address or 'any address'}, port {port} ({error}); "
            "give an address of this machine and a free port"
        ) from error


def _proof(token: str, nonce: str) -> str:
    return hmac.new(token.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def _here() -> str:
    return socket.gethostname()


def _text(value: object) -> str:
    """A text of the other machine that can be shown: short, and without control characters."""
    return "".join(c for c in str(value)[:1000] if c.isprintable())
