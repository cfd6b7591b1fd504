"""Where extractions run: engines by name."""

from collections.abc import Collection, Mapping
from typing import Any

from pipelines.engines.engine import Engine
from pipelines.engines.processes import Here, LocalProcesses
from pipelines.engines.ray_tasks import RayTasks
from pipelines.engines.slurm import Slurm
from pipelines.parameters.engine import configured_engine
from store import BeyondClsError
from store.errors import unknown

ENGINES: dict[str, type[Engine]] = {
    "here": Here,
    "processes": LocalProcesses,
    "slurm": Slurm,
    "ray": RayTasks,
}


def choose_engine(
    options: Mapping[str, Any], named: Collection[str] = (), device: str = "auto", is_task: bool = False
) -> Engine:
    """The engine that options ask for (`parameters.engine.ENGINE`). Several workers, without a name, are processes of this
    machine.

    Args:
        named: options that were given on the command line; others, and those that engines do not read, are ignored.
        device: what workers compute on.
        is_task: this process is one of several that share a set already, so what the parameter file says is meant for others.

    Raises:
        BeyondClsError: unknown name; an option that the engine does not read; a task that is to start others; or a mistake in
            the user's configuration.
    """
    # Of two that exclude each other, that of the command line wins over that of the parameter file.
    options = {n: v for n, v in options.items() if n in named or {"tasks": "gpus", "gpus": "tasks"}.get(n) not in named}
    several = options.get("tasks", 1) > 1 or options.get("gpus") is not None
    name = options.get("on") or ("processes" if several else "here")
    if name not in ENGINES:
        raise BeyondClsError(
            unknown("engine", str(name), ENGINES, "Give one of them as --on, or as `on` in the parameter file")
        )
    if is_task:
        if "on" in named and name != "here":
            raise BeyondClsError(
                f"--on {name} starts workers itself, and this is one of several tasks already (--task-id, --n-tasks or "
                "torchrun); leave out one of the two"
            )
        return Here(device=device)
    engine, options = ENGINES[name], {**configured_engine(name), **options}
    for option in named:
        if option != "on" and option not in engine.options and (option, options[option]) != ("tasks", 1):
            readers = " or ".join(f"--on {other}" for other, entry in ENGINES.items() if option in entry.options)
            value = " ".join(options[option]) if isinstance(options[option], list) else options[option]
            raise BeyondClsError(f"--{option} {value} is not for --on {name}; leave it out, or give {readers}")
    return engine(**{name: options[name] for name in engine.options if name in options}, device=device)
