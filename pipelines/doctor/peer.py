"""`beyondcls doctor --listen` and `--peer`: two machines examine a folder that both have, by way of that folder alone.

The listener makes a scratch folder whose name ends with a code, which only its user can enter, and waits. Who is given the code
on the other machine takes the steps of `coherence` that the listener asks for, by name, and gets what was found. Messages are
files in a folder that is listed until they are there: network file systems ask for a listing anew, but may remember for long
that a name was missing. What is examined is in another folder, so that these listings refresh nothing there.
"""

import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.doctor.coherence import LOST_S, STEPS, Steps, examine
from pipelines.doctor.file_system import PREFIX
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine, existing
from store.errors import BeyondClsError
from store.places.disk import open_own, partial_name, write_synced

WAIT_S = 600.0  # for a peer
ANSWER_S = LOST_S + 30  # the longest step, and a lease that stands still
POLL_S = 0.05
MESSAGES, EXAMINED = "messages", "examined"  # folders in the scratch folder
_LONGEST = 1 << 14  # bytes of a message
_CODE = re.compile(r"[a-z0-9_]{8}")
_SAME = "compare the code; run both as one user in the same project, on the file system that they share; then start both again"


class _Messages:
    """JSON objects that two sides send each other by turns, a file each, by their number.

    Raises:
        BeyondClsError: the other side is gone, or says something else.
    """

    def __init__(self, folder: Path):
        self._folder, self._n = folder, 0

    def send(self, **message: Any) -> None:
        self._n += 1
        file = self._folder / str(self._n)
        partial = partial_name(file)
        try:
            write_synced(partial, [json.dumps(message).encode()])
            os.replace(partial, file)
        except OSError as error:
            raise BeyondClsError(
                f"{file} cannot be written ({error.strerror}): the other machine is gone; start again"
            ) from error

    def receive(self, seconds: float) -> dict[str, Any]:
        self._n += 1
        deadline = time.monotonic() + seconds
        while (content := self._content()) is None:
            if time.monotonic() > deadline:
                raise BeyondClsError(f"the other machine does not answer within {seconds:g} s; start both again")
            time.sleep(POLL_S)
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise BeyondClsError("the other machine is no beyondcls doctor, or of another version; start both again")
        return message

    def _content(self) -> bytes | None:
        """Of the next message; None if it is not there yet."""
        try:
            if str(self._n) in os.listdir(self._folder):
                with open(self._folder / str(self._n), "rb", opener=open_own) as file:
                    return file.read(_LONGEST)
        except OSError as error:
            if not self._folder.is_dir():
                raise BeyondClsError("the other machine has ended the examination; start both again") from error
        return None


class _Remote:
    """The side on the other machine."""

    def __init__(self, messages: _Messages, name: str):
        self.name, self._messages = name, messages

    def do(self, step: str) -> str:
        self._messages.send(do=step)
        return _text(self._messages.receive(ANSWER_S).get("done"))


def listen(machine: Machine, say: Callable[[str], object]) -> Iterator[Finding]:
    """Wait for one peer, and examine the folder with it.

    Args:
        say: is called with what to do on the other machine.

    Raises:
        BeyondClsError: nobody came, or the peer went away.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{PREFIX}peer-", dir=existing(machine.features)))
    try:
        for name in (MESSAGES, EXAMINED):
            (scratch / name).mkdir()
        messages = _Messages(scratch / MESSAGES)
        say(f"waiting; on the other machine, in this project: beyondcls doctor --peer {scratch.name[-8:]}")
        peer = _text(messages.receive(WAIT_S).get("host"))
        findings = list(examine(Steps(scratch / EXAMINED, socket.gethostname()), _Remote(messages, peer)))
        messages.send(findings=[asdict(finding) for finding in findings])
        yield from findings
        with suppress(BeyondClsError):
            messages.receive(ANSWER_S)  # it has them
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def visit(machine: Machine, code: str) -> Iterator[Finding]:
    """Examine the folder with a machine that listens.

    Args:
        code: that the other machine shows.

    Raises:
        BeyondClsError: this is no code, or the other side went away.
    """
    if not _CODE.fullmatch(code):
        raise BeyondClsError(f"{code!r} is no code, expected the 8 characters that `beyondcls doctor --listen` shows")
    folder, host = existing(machine.features), socket.gethostname()
    scratch, deadline = folder / f"{PREFIX}peer-{code}", time.monotonic() + LOST_S
    while scratch.name not in os.listdir(folder) or not os.access(scratch, os.W_OK | os.X_OK):
        if time.monotonic() > deadline:
            observed = f"{host} does not see in {folder} what the other machine has made: not the same files"
            yield Finding("same folder", "problem", observed, _SAME)
            return
        time.sleep(POLL_S)
    messages = _Messages(scratch / MESSAGES)
    messages.send(host=host)
    yield from _findings(messages, Steps(scratch / EXAMINED, host))
    messages.send(host=host)


def _findings(messages: _Messages, steps: Steps) -> Iterator[Finding]:
    """Take the steps that are asked for, until the findings come."""
    while "findings" not in (message := messages.receive(2 * ANSWER_S)):
        step = message.get("do")
        if step not in STEPS:
            raise BeyondClsError(f"the other machine asks for {_text(step)!r}, expected one of: {', '.join(STEPS)}")
        messages.send(done=steps.do(step))
    try:
        for finding in message["findings"]:
            name, state, found, remedy = (_text(finding[field]) for field in ("name", "state", "found", "remedy"))
            if state not in ("ok", "note", "problem"):
                raise ValueError(state)
            yield Finding(name, state, found, remedy)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise BeyondClsError("the other machine is no beyondcls doctor, or of another version") from error


def _text(value: object) -> str:
    """A text of the other machine that can be shown: short, and without control characters."""
    return "".join(c for c in str(value)[:1000] if c.isprintable())
