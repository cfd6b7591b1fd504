"""python -m pipelines.code PROGRAM: digests of the code that it runs."""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.code.closure import Project
from pipelines.code.units import PROGRAMS
from pipelines.params import read_params
from store import BeyondClsError
from store.errors import unknown


def main(
    program: Annotated[str, typer.Argument(help=f"{', '.join(PROGRAMS)}")],
    params: Annotated[Path, typer.Option(help="says which entries of registries are used")] = Path("params.yaml"),
    out: Annotated[Path, typer.Option(help="folder for the digests")] = Path("code"),
) -> None:
    """Write OUT/PROGRAM.json; of programs whose stages use different code, a file for each encoder, head, …

    Each maps the files of the project that are run to digests of their syntax trees. To be run in the project's folder.

    Raises: BeyondClsError: unknown program, or no parameter file.
    """
    if program not in PROGRAMS:
        raise BeyondClsError(unknown("program", program, PROGRAMS))
    project = Project(Path().resolve())
    units = list(PROGRAMS[program](read_params(params), project))
    for folder in {out / unit.file for unit in units if "/" in unit.file}:
        shutil.rmtree(folder.parent, ignore_errors=True)  # of entries that are gone
    for unit in units:
        file = out / f"{unit.file}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(project.digests(unit.modules, unit.used), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        typer.run(main)
    except BeyondClsError as error:
        sys.exit(f"error: {error}")
