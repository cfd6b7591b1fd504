"""A log of each command in the user's own folder: versions, what it said on standard error, and how it ended."""

import importlib.metadata
import os
import platform
import shlex
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from store.shown import redacted, shown

VARIABLE = "BEYONDCLS_LOG"  # names another folder; empty for no logs
KEPT = 200  # logs, in addition to those of the last day
DAY_S = 24 * 60 * 60
OURS = "beyondcls"
ALWAYS = ("torch", "numpy", "zarr")  # packages whose versions are noted, loaded or not
# Modules whose versions are noted if the command has imported them.
IF_LOADED = ("timm", "torchvision", "triton", "sklearn", "cv2", "PIL", "webdataset", "ray")


class CommandLog:
    """The log of one command; a file that only its user can read.

    Attributes:
        file: None where none is kept.
    """

    def __init__(self, file: Path | None):
        self.file, self._begun = file, time.monotonic()

    @classmethod
    def begin(cls, arguments: Sequence[str]) -> "CommandLog":
        """Begin the log of `beyondcls ARGUMENTS`, and remove those of long ago.

        Where no log can be written, a note on standard error says so, and the command runs without one.
        """
        log, now = cls(None), datetime.now(UTC)
        try:
            if (folder := folder_of_logs()) is None:
                return log
            folder.mkdir(parents=True, exist_ok=True)
            for file in sorted(folder.glob("*-*.log"), reverse=True)[KEPT - 1 :]:  # names begin with a time
                with suppress(OSError):  # another command was faster
                    if time.time() - file.stat().st_mtime > DAY_S:
                        file.unlink()
            place = f"in {os.getcwd()}, process {os.getpid()} on {socket.gethostname()}"
        except (OSError, RuntimeError) as error:  # the latter: there is no home
            log._give_up(error)
            return log
        versions = ", ".join(f"{package} {version_of(package)}" for package in ALWAYS)
        log.file = folder / f"{now:%Y%m%dT%H%M%S.%f}-{os.getpid()}.log"
        log.write(f"$ {recorded_command(arguments)}", f"{place}, {now.isoformat(' ', 'seconds')}")
        log.write(f"{OURS} {version_of(OURS)}, Python {platform.python_version()}, {versions}")
        return log

    def write(self, *lines: str) -> None:
        """Add lines; nothing where no log is kept."""
        if self.file is None:
            return
        try:
            number = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            with open(number, "a", encoding="utf-8", errors="backslashreplace") as target:
                target.writelines(f"{shown(line)}\n" for line in lines)
        except OSError as error:
            self._give_up(error)

    def end(self, status: int) -> None:
        """Add what was imported meanwhile, and the exit status."""
        versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in IF_LOADED}
        if loaded := [f"{name} {version}" for name, version in versions.items() if version]:
            self.write(f"imported {', '.join(loaded)}")
        seconds, now = time.monotonic() - self._begun, datetime.now(UTC).isoformat(" ", "seconds")
        self.write(f"ended with status {status} after {seconds:.1f} s, {now}")
        self.file = None

    @contextmanager
    def copying_stderr(self) -> Iterator[None]:
        """Copy what Python code says on standard error, line by line, without progress bars."""
        if self.file is None:
            yield
            return
        before, sys.stderr = sys.stderr, _Copied(sys.stderr, self)
        try:
            yield
        finally:
            sys.stderr = before

    def _give_up(self, error: Exception) -> None:
        self.file = None
        remedy = f"{VARIABLE} names another folder for logs, or is empty for none"
        print(f"note: no log is kept of this command ({error}); {remedy}", file=sys.stderr)


class Wrapped:
    """A text stream that does something more with what is written."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Copied(Wrapped):
    """A text stream whose lines also go to a log."""

    def __init__(self, stream: TextIO, log: CommandLog):
        super().__init__(stream)
        self._log, self._line = log, ""

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        *lines, self._line = (self._line + text).split("\n")
        # Bars are drawn again and again, by these characters.
        self._log.write(*(line for line in lines if line.strip() and "\r" not in line and "\x1b" not in line))
        return written


def recorded_command(arguments: Sequence[str] | None = None) -> str:
    """`beyondcls ARGUMENTS`, by default this command, as logs and results keep it: without secrets of addresses."""
    return shlex.join([OURS, *map(redacted, sys.argv[1:] if arguments is None else arguments)])


def folder_of_logs() -> Path | None:
    """Where logs are kept: BEYONDCLS_LOG, or else beyondcls/logs in the user's folder for state; None for nowhere.

    Raises:
        RuntimeError: the user has no home.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).expanduser().absolute() if named else None
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local/state") / OURS / "logs"


def version_of(package: str) -> str:
    """The installed version of a package, without importing it; in words where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
