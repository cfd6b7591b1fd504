"""Stages of the pipeline: dvc.yaml, with what params.yaml puts into it."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pipelines.parameters.params import mapping, read_params, section
from store import BeyondClsError

PIPELINE, PARAMS = "dvc.yaml", Path("params.yaml")
# Stages that only tell DVC what the others depend on.
OF_DVC = ("code", "code-data", "code-dense", "recipes")
CHECK = "python -P -m pipelines.parameters.commands"  # comes before others' commands


@dataclass(frozen=True)
class Stage:
    """One stage, of one encoder, data set and so on.

    Attributes:
        name: in dvc.yaml, followed by what it is of, as DVC shows it: `extract@mae-cifar10-train`.
        commands: lines of a shell, in their order, without the check of the parameter file.
    """

    name: str
    commands: tuple[str, ...]

    @property
    def words(self) -> list[list[str]]:
        """Words of each command; those that `&&` joins are several."""
        commands: list[list[str]] = []
        for command in self.commands:
            commands.append([])
            for word in shlex.split(command):
                commands.append([]) if word == "&&" else commands[-1].append(word)
        return commands


def shipped(name: str) -> Path:
    """A file of the pipeline that belongs to this program, in a clone or beside an installed package.

    Raises:
        BeyondClsError: the installation lacks it.
    """
    beside = Path(__file__).resolve().parents[2] / name
    if beside.is_file():
        return beside
    try:
        files = distribution("beyondcls").files or []
        installed = [Path(str(file.locate())).resolve() for file in files if file.match(f"share/beyondcls/{name}")]
    except PackageNotFoundError:
        installed = []
    if not installed or not installed[0].is_file():
        raise BeyondClsError(f"this installation has no share/beyondcls/{name} below {sys.prefix}; install beyondcls again")
    return installed[0]


def stages_of(params: Mapping[str, Any], pipeline: Path) -> Iterator[Stage]:
    """The stages that compute something, each after those whose outputs it reads, as they are written in dvc.yaml.

    Frozen ones are left out, as `dvc repro` does.

    Args:
        params: of the project.
        pipeline: the file.

    Raises:
        BeyondClsError: the file reads a name that params.yaml lacks.
    """
    content = read_params(pipeline)
    assumed = [read_params(Path(one)) if isinstance(one, str) else one for one in content.get("vars") or ()]
    values = {name: value for one in assumed for name, value in one.items()} | dict(params)
    for name, stage in section(content, "stages").items():
        if name not in OF_DVC and not stage.get("frozen"):
            body = stage.get("do", stage)
            for suffix, items in _items(stage, values):
                commands = [body["cmd"]] if isinstance(body["cmd"], str) else body["cmd"]
                fill = partial(re.sub, r"\$\{[^}]+\}", lambda reference, known=items: str(_value(reference[0], known)))
                yield Stage(f"{name}@{suffix}" if suffix else name, tuple(fill(c) for c in commands if c != CHECK))


def _items(stage: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each stage that `matrix` or `foreach` makes of one: its suffix, and the values that it reads."""
    if "foreach" in stage:
        given = _value(stage["foreach"], values) if isinstance(stage["foreach"], str) else stage["foreach"]
        if isinstance(given, list):  # whose entries DVC names by their values, or else counts
            given = {number if isinstance(item, Mapping | list) else item: item for number, item in enumerate(given)}
        for key, item in mapping(str(stage["foreach"]), given).items():
            yield str(key), {**values, "key": key, "item": item}
        return
    combined: list[dict[str, Any]] = [{}]
    for name, given in stage.get("matrix", {}).items():
        entries = _value(given, values) if isinstance(given, str) else given
        combined = [{**one, name: entry} for one in combined for entry in entries or ()]
    for item in combined:
        yield "-".join(map(str, item.values())), {**values, "item": item}


def _value(reference: str, values: Mapping[str, Any]) -> Any:
    """What `${item.encoder}` stands for."""
    found: Any = values
    for name in reference.strip("${}").split("."):
        if not isinstance(found, Mapping) or name not in found:
            raise BeyondClsError(f"the pipeline reads {reference}, which params.yaml lacks; add it there")
        found = found[name]
    return found
