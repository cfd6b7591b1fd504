"""params.yaml: whether the other commands will understand it."""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.doctor import dense
from pipelines.doctor.dvc_makes import unmade
from pipelines.doctor.dvc_reads import missing
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import PARAMS, Machine
from pipelines.parameters.commands import check_commands
from pipelines.parameters.common import common_layers
from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.groups import GROUPS, check_groups
from pipelines.parameters.heads import heads_of, plans_and_run
from pipelines.parameters.layers import Layer
from pipelines.parameters.params import section
from pipelines.parameters.primary import primary_of
from pipelines.parameters.studies import PLACES as OF_STUDIES
from pipelines.parameters.studies import params_of_study, studies_of
from pipelines.sharing.places import project_store
from store.errors import BeyondClsError, unknown

OTHERS = (
    "data",
    "datasets",
    "store",
    "encoders",
    "extract",
    "probe",
    "divergence",
    "by_block",
    "primary",
    "composed",
    "composed_dense",
    "dense",
    "whole",
    "localised",
    "other_probes",
    "other_studies",
)
SECTIONS = (*OTHERS, *GROUPS, *OF_STUDIES)


def check(machine: Machine) -> Finding:
    """Anything that a command would refuse is a problem; a section that no command reads is a note, as it may be yours."""
    params = machine.params  # raises if it cannot be read
    if params is None:
        return Finding("params.yaml", "ok", "none in this folder; the commands take options instead")
    problems: list[str] = []
    notes: list[str] = []
    with_timm = find_spec("timm") is not None
    encoders, heads, studies = (
        _names(entries, problems)
        for entries in (lambda: section(params, "encoders"), lambda: heads_of(params), lambda: studies_of(params))
    )
    checks: list[Callable[[], object]] = [lambda: project_store(section(params, "store")), lambda: datasets_of(params)]
    checks += [lambda: _primary(params)]
    if with_timm:
        checks += [lambda name=name: _encoder(machine, name) for name in encoders]  # type: ignore[misc]
    elif encoders:
        notes.append("encoders were not looked at: timm is not installed")
    checks += [lambda name=name: _head(machine.folder, name, params) for name in heads]  # type: ignore[misc]
    checks += [lambda name=name: _study(machine.folder, name, params) for name in studies]  # type: ignore[misc]
    checks += [lambda: check_commands(params), *dense.checks(params)]
    for refuse_mistakes in checks:
        try:
            refuse_mistakes()
        except BeyondClsError as error:
            problems.append(str(error))
    notes += [unknown("section", name, SECTIONS) for name in params if name not in (*SECTIONS, "compose", "tables")]
    notes += [] if problems else _outdated(machine.folder, params)
    observed = f"encoders: {len(encoders)}, heads: {len(heads)}, studies: {len(studies)}"
    if problems:
        return Finding("params.yaml", "problem", f"{observed}; mistakes: {len(problems)}", "\n".join([*problems, *notes]))
    return Finding("params.yaml", "note" if notes else "ok", observed, "\n".join(notes))


def _primary(params: Mapping[str, Any]) -> None:
    """Refuse a primary contrast that cannot be measured.

    Raises:
        BeyondClsError: it is not written as one, or has an encoder or a head that the project does not have.
    """
    if (primary := primary_of(params)) is None:
        return
    for kind, name, known in (
        ("encoder", primary.encoder, section(dict(params), "encoders")),
        *(("head", head, heads_of(params)) for head in (primary.head, primary.over)),
    ):
        if name not in known:
            raise BeyondClsError(f"primary: {unknown(kind, name, known)}")


def _outdated(folder: Path, params: Mapping[str, Any]) -> Iterator[str]:
    """What `dvc repro` needs otherwise than earlier versions did, and how to write it now."""
    dataset = next(iter(datasets_of(params)), "DATASET") if isinstance(params.get("datasets"), list | dict) else "DATASET"
    if isinstance(encoders := params.get("divergence"), list):
        written = ", ".join(f"{name}: {{dataset: {dataset}, encoder: {name}}}" for name in encoders)
        yield f"divergence is a list, which `dvc repro` does not read any more; write divergence: {{{written}}}"
    if params.get("tables"):
        yield "tables is not read any more; write each as a stage of a dvc.yaml, as paper/tables.yaml does"
    if "compose" in params:
        yield f"compose is of one data set, which `dvc repro` does not read any more; write composed: {{{dataset}: …}}"
        params = {"composed": {}, **params}
    yield from dense.absent(folder, params)
    yield from missing(folder, params)
    yield from unmade(folder, params)


def _names(entries: Callable[[], dict[str, Any]], problems: list[str]) -> list[str]:
    """Names in a section; empty if it cannot be read."""
    try:
        return [str(entry) for entry in entries()]
    except BeyondClsError as error:
        problems.append(str(error))
        return []


def _encoder(machine: Machine, name: str) -> None:
    """Refuse an encoder that cannot be loaded as it is described.

    Raises:
        BeyondClsError: parameters that nothing reads, invalid values, no such encoder, or no such checkpoint.
    """
    from extract.encoders import ENCODERS, checked_family, load_encoder, timm_names
    from extract.encoders.libraries import is_of_library
    from extract.requests import known_statistics
    from extract.transform import CHECKS, checked_transform
    from pipelines.parameters.extraction import from_params
    from store.user_code import is_custom

    loading, options = from_params(machine.folder / PARAMS, name)
    known_statistics(options.get("statistics"))
    checked_transform({option: loading.get(option) for option in CHECKS})
    checked_family(loading.get("family"))
    checkpoint = loading.get("checkpoint")
    if checkpoint is not None and not (machine.folder / str(checkpoint)).is_file():
        raise BeyondClsError(
            f"checkpoint of encoder {name!r} is {checkpoint!r}, which is not a file here; correct it, or pull it"
        )
    model = str(loading.get("model") or name)
    if is_custom(model):
        if not (machine.folder / model.rpartition(":")[0]).is_file():  # is not run
            raise BeyondClsError(f"model of encoder {name!r} is {model!r}, but there is no such file here; correct it")
    elif not is_of_library(model) and model not in ENCODERS and model.partition(".")[0] not in timm_names():
        # Either not a ViT or an unusual one: building it tells. Nothing is fetched.
        load_encoder(name, random_seed=0, model=loading.get("model"), arguments=loading.get("arguments"))


def _head(folder: Path, name: str, params: dict[str, Any], study: Layer | None = None) -> None:
    """Refuse a head, of a study or of a group, that cannot be trained as it is described.

    Raises:
        BeyondClsError: options that nothing reads, an unknown aggregator, a missing file of a custom one, or a head in a group
            that it does not belong to; custom aggregators are not run to see what they read.
    """
    from probe.aggregators import AGGREGATORS, is_custom

    plans, _ = plans_and_run([name], params, {}, {}, common_layers(params, study=study))
    if study is None:
        check_groups(params, plans, runs_files=False)
    for plan in plans.values():
        aggregator = plan.head.aggregator
        if is_custom(aggregator):
            file = folder / aggregator.rpartition(":")[0]  # is not run
            if not file.is_file():
                raise BeyondClsError(f"aggregator of head {name!r} is {aggregator!r}, but there is no file {file}; correct it")
        elif aggregator not in AGGREGATORS:
            raise BeyondClsError(unknown(f"aggregator of head {name!r}", aggregator, AGGREGATORS))


def _study(folder: Path, name: str, params: dict[str, Any]) -> None:
    """Refuse a study that cannot be run as it is described.

    Raises:
        BeyondClsError: the study, or one of its heads, would be refused.
    """
    study = section(params, studies_of(params)[name][0], name)
    encoders = section(params, "encoders")
    for place, known in (("encoder", encoders), ("joined", encoders), ("dataset", datasets_of(params))):
        if place in study and str(study[place]) not in known:
            group = "datasets" if place == "dataset" else "encoders"
            raise BeyondClsError(unknown(f"{place} of study {name!r}", str(study[place]), known, f"Add it to {group}"))
    of_study, layer = params_of_study(params, name)
    for head in of_study["heads"]:
        try:
            _head(folder, head, of_study, layer)
        except BeyondClsError as error:
            raise BeyondClsError(f"study {name!r}: {error}") from error
