"""python -m pipelines.code: digests of the code that stages run."""

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

import pipelines
from pipelines.code.closure import Project
from pipelines.code.units import FOLDERS, units
from pipelines.parameters.params import read_params
from pipelines.parameters.recipes import write_below
from store import BeyondClsError


def main(
    params: Annotated[Path, typer.Option(help="says which entries of registries are used")] = Path("params.yaml"),
    out: Annotated[Path, typer.Option(help="folder for the digests")] = Path("code"),
) -> None:
    """Write OUT/PROGRAM.json, and a file for each encoder, head, … where their stages use different code.

    Raises:
        BeyondClsError: no parameter file, sections without names, or a folder that is a link.
    """
    project = Project(Path().resolve(), Path(pipelines.__file__).resolve().parents[1])
    contents = {unit.file: project.digests(unit.modules, unit.used) for unit in units(read_params(params), project)}
    write_below(out, FOLDERS, contents)


if __name__ == "__main__":
    gc.disable()  # trees of the whole project are no garbage until the end; looking through them takes a third of the time
    try:
        typer.run(main)
    except BeyondClsError as error:
        sys.exit(f"error: {error}")
