"""A run: a whole command of this program, in a process of its own; and what its log says of its end."""

import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pipelines.process.command_log import recorded_command
from pipelines.process.stopping import UNFORESEEN

LOGS = ".runs"  # beside what runs write
# By name: the command line imports engines, not the other way round, and no stage of DVC depends on how it is started.
COMMAND_LINE = "pipelines.cli"
ENDED = "beyondcls ended with status "
BEGUN = "$ "  # and the command: a log has all that was done, one after the other
WIDTH = "400"  # in characters: lines are not broken
EXCERPT = 5  # lines of a log in which there is no message of ours
MESSAGE = 6  # lines of a message that are shown of several runs


@dataclass(frozen=True)
class Run:
    """A command that can be given again: it goes on where it was killed, and ends at once where it is done.

    Attributes:
        name: of what it writes, for messages.
        arguments: of `beyondcls`; it computes in its own process.
        log: file for its output, an absolute path.
    """

    name: str
    arguments: tuple[str, ...]
    log: Path

    @classmethod
    def writing(cls, out: str, arguments: tuple[str, ...]) -> "Run":
        """A run that writes into a folder; its log is OUT's parent/.runs/NAME.log."""
        folder = Path(os.path.abspath(out))
        return cls(str(Path(out)), arguments, folder.parent / LOGS / f"{folder.name}.log")

    @property
    def command(self) -> str:
        """As logs show it: without secrets of addresses."""
        return recorded_command(self.arguments)


def run_command(run: Run, folder: str, environment: Mapping[str, str], n_threads: int | None) -> int:
    """Turn this process into that of a command, and return its exit status. What it says goes to the log.

    Args:
        folder: to be in.
        environment: variables that differ from those of this process.
        n_threads: of torch on a CPU; None: as the environment says.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the command listens
    os.chdir(folder)
    os.environ.update({"COLUMNS": WIDTH, **environment})
    run.log.parent.mkdir(parents=True, exist_ok=True)
    log = run.log.open("a", buffering=1)
    for number in (1, 2):  # what libraries write, too
        os.dup2(log.fileno(), number)
    sys.stdout = sys.stderr = log
    sys.argv = ["beyondcls", *run.arguments]
    print(f"{BEGUN}{run.command}")
    try:
        if n_threads is not None:
            import torch

            torch.set_num_threads(n_threads)
        import_module(COMMAND_LINE).run()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return UNFORESEEN
    finally:
        log.flush()


def last_lines(log: Path) -> list[str]:
    """Of what was done last; none where there is no log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    begun = max((i + 1 for i, line in enumerate(lines) if line.startswith(f"{BEGUN}beyondcls ")), default=0)
    return lines[begun:]


def status_in(lines: Sequence[str]) -> int | None:
    """The exit status that a script has written; None before that."""
    ended = [line.removeprefix(ENDED) for line in lines if line.startswith(ENDED)]
    return int(ended[-1]) if ended and ended[-1].isdecimal() else None


def problem_in(lines: Sequence[str]) -> str:
    """The last message of ours, or else the last lines."""
    messages = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if not messages:
        return " / ".join(line for line in lines[-EXCERPT:] if not line.startswith(ENDED)) or "its log is empty"
    return "\n".join(line for line in lines[messages[-1] :] if not line.startswith(ENDED)).removeprefix("error: ")


def results_in(lines: Sequence[str], name: str) -> list[str]:
    """Lines about what a run of this name has written."""
    return [line for line in lines if line.startswith((f"{name}: ", f"{name}/"))]
