"""Several processes for one command, one for each GPU."""

import os
import subprocess
import sys
from typing import NoReturn


def is_task() -> bool:
    """Whether this process is one of several that were started together."""
    return "RANK" in os.environ


def is_first() -> bool:
    """Whether this process is the only one, or the one of torchrun's that prints messages."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def start_tasks(n: int) -> NoReturn:
    """Run this very command as `n` processes under torchrun, and exit as they do."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", "-m", "pipelines.cli"]
    sys.exit(subprocess.call([*launcher, *sys.argv[1:]]))
