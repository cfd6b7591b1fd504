"""The result of a check."""

from dataclasses import dataclass
from typing import Literal

from pipelines.doctor.masking import masked

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of `beyondcls doctor`, with secrets masked.

    Attributes:
        name: of the check, as in CHECKS.
        state: "note": something does not work or is slower here, and may not matter to you; "problem": it will.
        found: the state of this machine, in words.
        remedy: what to do, one line for each thing; empty if there is nothing to do.
    """

    name: str
    state: State
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", masked(self.found))
        object.__setattr__(self, "remedy", masked(self.remedy))
