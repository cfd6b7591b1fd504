"""What the log of a run, or of a task, says of its end."""

from collections.abc import Sequence
from pathlib import Path

ENDED = "beyondcls ended with status "
BEGUN = "$ "  # and the command: a log has all that was done, one after the other
WIDTH = "400"  # in characters: lines are not broken
EXCERPT = 5  # lines of a log in which there is no message of ours
MESSAGE = 6  # lines of a message that are shown of several runs


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
