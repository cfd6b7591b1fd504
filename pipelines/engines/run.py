"""A run: a whole command of this program, in a process of its own."""

import os
from dataclasses import dataclass
from pathlib import Path

from pipelines.process.command_log import recorded_command

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
