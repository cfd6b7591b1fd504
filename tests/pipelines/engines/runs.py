"""Runs of `beyondcls params`, which take no time, and an agenda that remembers what it was told."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.engines.engine import Agenda, Run, Watch


class Watched:
    """An agenda of runs, and what it says.

    Attributes:
        said, warned: lines.
        steps: numbers of runs that were reported to have ended.
    """

    def __init__(self, runs: Sequence[Run], tries: int = 3, stops: Callable[[], bool] = lambda: False, again: bool = False):
        self.said, self.warned, self.steps = list[str](), list[str](), list[int]()
        self.agenda = Agenda(runs, tries, Watch(self.steps.append, self.warned.append, stops), self.said.append, again=again)


def runs_in(folder: Path, *names: str) -> list[Run]:
    """A run for each name, which writes recipes into a folder of that name; that of `bad` fails."""
    (folder / "params.yaml").write_text("encoders: {mae-b16: {}}\n")
    params = {name: "none.yaml" if name == "bad" else "params.yaml" for name in names}
    return [
        Run.writing(str(folder / name), ("params", "--params", str(folder / params[name]), "--out", str(folder / name)))
        for name in names
    ]
