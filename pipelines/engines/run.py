"""A run: a whole command of this program, in a process of its own."""

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pipelines.engines.log import BEGUN, WIDTH
from pipelines.process.command_log import recorded_command
from pipelines.process.stopping import UNFORESEEN

LOGS = ".runs"  # beside what runs write


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


# By name: the command line imports engines, not the other way round, and no stage of DVC depends on how it is started.
COMMAND_LINE = "pipelines.cli"


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
