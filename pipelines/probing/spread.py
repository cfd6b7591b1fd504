"""Runs of `beyondcls probe` on an engine."""

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from pipelines.engines.engine import Agenda, Engine, Run, Watch
from pipelines.engines.slurm import RunArray, Slurm, hand_over
from pipelines.parameters.engine import without, without_engine
from pipelines.parameters.heads import folders_of
from pipelines.process.progress import progress_bar
from store import BeyondClsError

# The last one is what torch imports when it first counts operations.
IMPORTS = ("pipelines.probing.training", "pipelines.probe", "torch._dynamo")
HERE = ("--on", "here")  # a run starts no others, whatever the parameter file says


def runs_of(arguments: Sequence[str], heads: Sequence[str], out: Path) -> list[Run]:
    """The runs of a command: each of several heads is one, which writes what it would write beside the others.

    Args:
        arguments: of `beyondcls`, as they were given.
        heads: those of --head; none for a study, or one head.

    Raises:
        BeyondClsError: two heads would write into one folder.
    """
    common = without_engine(arguments)
    if len(heads) < 2:
        return [Run.writing(str(out), (*common, *HERE))]
    common = without(common, ("--head", "--out"))
    places = {head: str(out / folder) for folder, head in folders_of(heads).items()}
    return [Run.writing(place, (*common, "--head", head, "--out", place, *HERE)) for head, place in places.items()]


def spread(engine: Engine, runs: Sequence[Run], script: Path | None, dry_run: bool, stops: Callable[[], bool]) -> bool:
    """Have an engine compute runs, or write a script for that; whether this was finished.

    Raises:
        BeyondClsError: runs have failed, which names them; or the engine cannot compute here.
    """
    if isinstance(engine, Slurm) and (script is not None or dry_run):
        array = RunArray(engine, runs)
        for folder in array.folders if script is not None else ():
            folder.mkdir(parents=True, exist_ok=True)
        hand_over(array.script, script, f"each run has its log, e.g. {runs[0].log}", typer.echo)
        return True
    for run in runs:
        run.log.unlink(missing_ok=True)  # of an earlier command
    typer.echo(f"{len(runs)} runs, each with a log, e.g. {runs[0].log}" if len(runs) > 1 else f"log: {runs[0].log}")
    with progress_bar("probe", len(runs), "runs") as progress:
        watch = Watch(progress, lambda message: typer.echo(message, err=True), stops)
        agenda = Agenda(runs, engine.tries, watch, typer.echo, IMPORTS)
        engine.run_all(agenda)
    if agenda.problems:
        failed = "\n".join(f"{name}: {problem}" for name, problem in agenda.problems.items())
        raise BeyondClsError(f"{len(agenda.problems)} of {len(runs)} runs failed, {agenda.n_done} succeeded:\n{failed}")
    if agenda.n_done < len(runs):
        typer.echo(f"stopped (SIGUSR1) after {agenda.n_done} of {len(runs)} runs; the same command goes on", err=True)
        return False
    return True
