"""What checks look at, and what they give: this machine with the folder that the command runs in, and findings."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pipelines.parameters.params import read_params, section
from pipelines.sharing.places import Places
from store.shown import shown

State = Literal["ok", "note", "problem"]
PARAMS = "params.yaml"


@dataclass(frozen=True)
class Finding:
    """One line of `beyondcls doctor`, without passwords of addresses.

    Attributes:
        name: of the check, as in CHECKS, or beginning with it.
        state: "note": something does not work or is slower here, and may not matter to you; "problem": it will.
        found: the state of this machine, and what was expected.
        remedy: what to do, one line for each thing; empty where all is ok.
    """

    name: str
    state: State
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", shown(self.found))
        object.__setattr__(self, "remedy", "" if self.state == "ok" else shown(self.remedy))


@dataclass(frozen=True)
class Machine:
    """Facts that several checks need; each raises a BeyondClsError if its file cannot be read, or has an invalid value.

    Attributes:
        folder: the folder that the command runs in.
        offline: no check may use the network.
    """

    folder: Path = Path()
    offline: bool = False

    @cached_property
    def params(self) -> dict[str, Any] | None:
        """params.yaml; None if there is none."""
        file = self.folder / PARAMS
        return read_params(file) if file.exists() else None

    @cached_property
    def places(self) -> Places:
        """Where params.yaml and the user's configuration (`store`) put feature sets."""
        return Places.from_section(section(self.params or {}, "store"), self.folder / PARAMS)
