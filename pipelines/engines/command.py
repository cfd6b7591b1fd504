"""A run in the process that was made for it."""

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module

from pipelines.engines.log import BEGUN, WIDTH
from pipelines.engines.run import Run
from pipelines.process.stopping import UNFORESEEN

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
