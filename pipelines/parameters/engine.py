"""Options that say where work is computed: the name of an engine, and attributes of `pipelines.engines.Engine`."""

from collections.abc import Iterable, Sequence
from typing import Any

from pipelines.parameters.configuration import configured
from pipelines.parameters.options import Option, check_values, flag_of
from pipelines.parameters.params import check_names
from store.errors import BeyondClsError


def _gpus(option: str, text: str) -> int | str:
    """`all`, or a number."""
    if text != "all" and not (text.isdecimal() and int(text) > 0):
        raise BeyondClsError(f"{option} is {text!r}, expected all, or how many GPUs")
    return text if text == "all" else int(text)


# They may be in params.yaml too, and change nothing of what is written: no digest, recipe or record has them.
ENGINE = {
    "on": Option(
        str,
        "where it is computed: here (by this process), processes (of this machine, one for each GPU), slurm (a job array), ray "
        "(a cluster)",
        "here; processes with several --tasks, or --gpus",
    ),
    "tasks": Option(
        int,
        "how much is computed at a time: by how many processes, tasks of the job array, or of Ray",
        "one for each GPU, or for four CPU cores; of slurm 1 (extract), or all heads at once (probe)",
        least=1,
    ),
    "gpus": Option(str, "GPUs of this machine that processes use: all, or how many", read=_gpus),
    "tries": Option(int, "times that a process or task may fail or die before the command fails", "3", least=1),
    "address": Option(str, "of a Ray cluster: ray://HOST:10001, or auto", "RAY_ADDRESS, or a local one is started"),
    "sbatch": Option(str, "options of sbatch for the job array, in quotes: '--partition=gpu --gres=gpu:1 --time=4:00:00'"),
    "setup": Option(
        list[str], "a line of shell that each task of the job array runs first, e.g. 'module load cuda'; may be repeated"
    ),
}
# What a user's own configuration may say of Slurm for all projects: it depends on the cluster.
OF_SLURM = ("sbatch", "setup")
SCRIPT, DRY_RUN = "--script", "--dry-run"


def configured_engine(name: str) -> dict[str, Any]:
    """Options of an engine in the user's own configuration, section [slurm]; those of the parameter file win.

    Raises:
        BeyondClsError: an unknown option, or a value of another type; or as `configured`.
    """
    if name != "slurm":
        return {}
    file, values = configured(name)
    check_names(f"{name} of {file}", values, list(OF_SLURM))
    check_values(f"{file}: {name}.", values, ENGINE)
    return values


def without_engine(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command without those that say where it is computed."""
    return without(arguments, [*map(flag_of, ENGINE), SCRIPT], [DRY_RUN])


def without(arguments: Iterable[str], options: Sequence[str], switches: Sequence[str] = ()) -> list[str]:
    """Arguments without some options, each of which has a value, and some switches."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in options:
            next(rest, None)
        elif argument not in switches and not argument.startswith(tuple(f"{name}=" for name in options)):
            kept.append(argument)
    return kept
