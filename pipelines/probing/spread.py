"""Runs of `beyondcls probe`: those of a command or of all stages of dvc.yaml, on an engine."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from pipelines.engines.engine import Agenda, Engine, Run, Watch
from pipelines.engines.slurm import RunArray, Slurm
from pipelines.parameters.engine import without, without_engine
from pipelines.parameters.heads import folders_of, shared_group
from pipelines.parameters.params import read_params
from pipelines.parameters.stages import PARAMS, PIPELINE, stages_of
from pipelines.process.progress import progress_bar
from store import BeyondClsError
from store.errors import unknown

# The last one is what torch imports when it first counts operations.
IMPORTS = ("pipelines.probing.training", "pipelines.probe", "torch._dynamo")
HERE = ("--on", "here")  # a run starts no others, whatever the parameter file says
COMMAND = ["beyondcls", "probe"]
REMEDY = "or give runs by themselves, with --features, --test and --out"


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


def every_run(
    names: Mapping[str, Collection[str]],
    params: Path | None,
    beside: Sequence[str],
    n_places: Callable[[int], int] = lambda n_runs: n_runs,
) -> list[Run]:
    """Runs of the stages of dvc.yaml in this folder whose commands begin with `beyondcls probe`.

    Heads of the same feature sets are one run, which reads them once for all, unless there are fewer such runs than places for
    them: then they are divided among so many.

    Args:
        names: by option, those that a run must have, e.g. {"--dataset": ["cifar10"]}; none for any.
        params: the parameter file that they must take; None for any.
        beside: further arguments of each.
        n_places: how many of so many runs are computed at a time; by default all.

    Raises:
        BeyondClsError: there is no such stage, or dvc.yaml cannot be read here.
    """
    if not (pipeline := Path(PIPELINE)).is_file():
        raise BeyondClsError(f"--every needs {PIPELINE}, and there is none in {Path.cwd()}; go to the project, {REMEDY}")
    runs = [words for stage in stages_of(read_params(PARAMS), pipeline) for words in stage.words if words[:2] == COMMAND]
    if not runs:
        raise BeyondClsError(f"no stage of {pipeline.absolute()} runs `beyondcls probe`; add some to it, {REMEDY}")
    for option, chosen in names.items():
        known = {value for words in runs for value in _values(words, option)}
        if strange := next((name for name in chosen if name not in known), None):
            kind = option.removeprefix("--")
            raise BeyondClsError(unknown(kind, strange, known, f"These are in stages of {PIPELINE} that run `beyondcls probe`"))
    asked = {option: {*chosen} for option, chosen in names.items() if chosen}
    selected = [words for words in runs if all(chosen & {*_values(words, option)} for option, chosen in asked.items())]
    if not selected:
        given = " ".join(f"{option} {name}" for option, chosen in names.items() for name in chosen)
        raise BeyondClsError(f"no stage of {PIPELINE} has {given} together; leave out one of these")
    taken = {value for words in selected for value in _values(words, "--params")}
    if others := [value for value in sorted(taken) if params is not None and Path(value) != params]:
        raise BeyondClsError(f"--params is {params}, but stages of {PIPELINE} take {others[0]}; leave it out, or change these")
    return [_sharing(group, beside) for group in _groups(selected, read_params(PARAMS), n_places(len(selected)))]


def _groups(commands: Sequence[Sequence[str]], params: Mapping[str, Any], n_places: int) -> list[Sequence[Sequence[str]]]:
    """Commands that differ in a head and its folder only, in at least `n_places` groups, as far as there are so many."""
    groups: dict[Any, list[Sequence[str]]] = {}
    for words in commands:
        heads, out = _values(words, "--head"), Path(*_values(words, "--out")[:1])
        group = shared_group(heads[0], params) if len(heads) == 1 and [*folders_of(heads)] == [out.name] else None
        key = tuple(words) if group is None else (group, out.parent, *without(words, ("--head", "--out")))
        groups.setdefault(key, []).append(words)
    n_parts = -(-n_places // len(groups))
    return [group[part::n_parts] for group in groups.values() for part in range(min(n_parts, len(group)))]


def _sharing(commands: Sequence[Sequence[str]], beside: Sequence[str]) -> Run:
    """The run of one command, or of several that share a pass."""
    first, out = commands[0], _values(commands[0], "--out")[0]
    if len(commands) == 1:
        return Run.writing(out, (*first[1:], *beside, *HERE))
    heads = [word for words in commands for word in ("--head", *_values(words, "--head"))]
    common = without(first[1:], ("--head", "--out"))
    run = Run.writing(out, (*common, *heads, "--out", str(Path(out).parent), *beside, *HERE))
    return replace(run, name=f"{run.name} and {len(commands) - 1} more")


def _values(words: Sequence[str], option: str) -> list[str]:
    """Values of an option, as `--head cls` or `--head=cls`."""
    after = [value for word, value in pairwise(words) if word == option]
    return after + [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]


def spread(engine: Engine, runs: Sequence[Run], script: Path | None, dry_run: bool, stops: Callable[[], bool]) -> bool:
    """Have an engine compute runs, or write a script for that; whether this was finished.

    Raises:
        BeyondClsError: runs have failed, which names them; or the engine cannot compute here.
    """
    if isinstance(engine, Slurm) and (script is not None or dry_run):
        RunArray(engine, runs).hand_over(script, typer.echo)
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
