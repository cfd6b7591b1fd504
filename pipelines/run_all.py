"""`beyondcls run`: everything that params.yaml asks for, in order, without DVC."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer

from pipelines.engines.engine import COMMAND_LINE
from pipelines.init import Encoders, Folder, Heads, Images
from pipelines.process.command_log import OURS
from store import BeyondClsError


def main(folder: Folder = Path(), data: Images = None, encoder: Encoders = None, head: Heads = None) -> None:
    """Extract, probe and draw all that params.yaml asks for; what is there already is checked and kept.

    In a folder without params.yaml, give --data and --encoder: it is written first, as `beyondcls init` does. All files are
    those of the DVC pipeline, which can go on from them: `dvc repro`.
    """
    from pipelines.init import HEADS, write_project

    is_new = not (folder / "params.yaml").exists()
    if is_new and (data is None or not encoder):
        raise BeyondClsError(
            f"there is no params.yaml in {folder.resolve()}; give --data and --encoder, or the folder of a project"
        )
    if not is_new and (data is not None or encoder or head):
        raise BeyondClsError(
            f"{folder / 'params.yaml'} says which images, encoders and heads; change it there, or give another folder"
        )
    if is_new and data is not None and encoder:
        write_project(folder, data, encoder, head or HEADS)
    run_project(folder)


def run_project(folder: Path) -> None:
    """Run the stages of a project one after the other, in this process.

    Raises:
        BeyondClsError: as the first stage that fails.
    """
    from pipelines.parameters.commands import check_commands
    from pipelines.parameters.params import read_params
    from pipelines.parameters.stages import PARAMS, PIPELINE, shipped, stages_of

    before, arguments = Path.cwd(), sys.argv
    os.chdir(folder)
    try:
        pipeline = Path(PIPELINE)
        params = read_params(PARAMS)
        check_commands(params)
        stages = list(stages_of(params, pipeline if pipeline.exists() else shipped(PIPELINE)))
        for number, stage in enumerate(stages, 1):
            typer.echo(f"\n[{number}/{len(stages)}] {stage.name}")
            for words in stage.words:
                _run(words)
    finally:
        sys.argv = arguments
        os.chdir(before)


def _run(words: Sequence[str]) -> None:
    """A command of dvc.yaml: `beyondcls …` in this process, `python -P -m MODULE …` in its own."""
    if words[0] == OURS:
        sys.argv = list(words)  # results record how they were made
        import_module(COMMAND_LINE).app(list(words[1:]), prog_name=OURS, standalone_mode=False)
    else:
        subprocess.run([sys.executable, *words[1:]], check=True)
