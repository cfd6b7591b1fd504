"""Several processes for one command."""

import os


def is_task() -> bool:
    """Whether this process is one of several that were started together."""
    return "RANK" in os.environ


def is_first() -> bool:
    """Whether this process is the only one, or the one of torchrun's that prints messages."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"
