"""All runs that the stages of a project make, as dvc.yaml says."""

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.engines.engine import Run
from pipelines.probing.spread import HERE
from store import BeyondClsError
from store.errors import unknown

if TYPE_CHECKING:
    from dvc.stage import PipelineStage

DVC_YAML = "dvc.yaml"
COMMAND = ["beyondcls", "probe"]
REMEDY = "or give runs by themselves, with --features, --test and --out"


def every_run(names: Mapping[str, Collection[str]], params: Path | None, beside: Sequence[str], prepares: bool) -> list[Run]:
    """Runs of the stages of dvc.yaml in this folder whose commands begin with `beyondcls probe`.

    Args:
        names: by option, those that a run must have, e.g. {"--dataset": ["cifar10"]}; none for any.
        params: the parameter file that they must take; None for any.
        beside: further arguments of each.
        prepares: whether what they will write becomes a copy where it is a link to DVC's cache, as `dvc repro` does.

    Raises:
        BeyondClsError: there is no such stage, or dvc.yaml cannot be read here.
    """
    stages = [(stage, words) for stage in _stages() for words in _commands(stage)]
    if not stages:
        raise BeyondClsError(f"no stage of {Path(DVC_YAML).absolute()} runs `beyondcls probe`; add some to it, {REMEDY}")
    for option, chosen in names.items():
        known = {value for _, words in stages for value in _values(words, option)}
        if strange := next((name for name in chosen if name not in known), None):
            kind = option.removeprefix("--")
            raise BeyondClsError(unknown(kind, strange, known, f"These are in stages of {DVC_YAML} that run `beyondcls probe`"))
    selected = [(stage, words) for stage, words in stages if all(_has(words, *chosen) for chosen in names.items())]
    if not selected:
        given = " ".join(f"{option} {name}" for option, chosen in names.items() for name in chosen)
        raise BeyondClsError(f"no stage of {DVC_YAML} has {given} together; leave out one of these")
    runs = []
    for stage, words in selected:
        _check_params(words, params)
        if prepares:
            stage.unprotect_outs()
        (out,) = _values(words, "--out")
        runs.append(Run.writing(out, (*words[1:], *beside, *HERE)))
    return runs


def _stages() -> "list[PipelineStage]":
    """Stages of dvc.yaml in this folder, with all names filled in, but for frozen ones, which `dvc repro` leaves out.

    Raises:
        BeyondClsError: no DVC, no project, no dvc.yaml, or one that DVC cannot read.
    """
    try:
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
    except ModuleNotFoundError as error:
        raise BeyondClsError(
            f"--every takes its runs from {DVC_YAML}, and dvc, which reads it, is not installed here; pip install dvc, {REMEDY}"
        ) from error
    if not os.path.isfile(DVC_YAML):
        raise BeyondClsError(
            f"--every takes its runs from {DVC_YAML}, and there is none in {os.getcwd()}; give the command in the folder of "
            f"the project, {REMEDY}"
        )
    try:
        return [stage for stage in Repo().stage.load_all(DVC_YAML) if not stage.frozen]
    except DvcException as error:
        raise BeyondClsError(f"DVC cannot read {DVC_YAML} in {os.getcwd()}: {error}; correct it, {REMEDY}") from error


def _commands(stage: "PipelineStage") -> Iterator[list[str]]:
    """Words of each command of a stage that is one of ours."""
    for line in [stage.cmd] if isinstance(stage.cmd, str) else stage.cmd or ():
        for part in line.split("&&"):
            words = shlex.split(part)
            if words[:2] == COMMAND:
                yield words


def _values(words: Sequence[str], option: str) -> list[str]:
    """Values of an option, as `--head cls` or `--head=cls`."""
    after = [value for word, value in pairwise(words) if word == option]
    return after + [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]


def _has(words: Sequence[str], option: str, chosen: Collection[str]) -> bool:
    return not chosen or any(value in chosen for value in _values(words, option))


def _check_params(words: Sequence[str], params: Path | None) -> None:
    """Refuse another parameter file than that of the stage, as DVC does not know it.

    Raises:
        BeyondClsError: they differ.
    """
    taken = [value for value in _values(words, "--params") if params is not None and Path(value) != params]
    if taken:
        raise BeyondClsError(
            f"--params is {params}, but stages of {DVC_YAML} take {taken[0]}; leave it out, or change it in {DVC_YAML}"
        )
