"""params.yaml: whether the other commands will understand it."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.doctor.finding import Finding
from pipelines.doctor.here import PARAMS, Here
from pipelines.groups import GROUPS, check_groups
from pipelines.heads import heads_of, plans_and_run
from pipelines.params import section
from pipelines.places import of_project
from pipelines.studies import PLACES as OF_STUDIES
from pipelines.studies import params_of_study, studies_of
from store.errors import BeyondClsError, unknown

OTHERS = ("data", "datasets", "store", "encoders", "extract", "probe", "divergence", "compose", "other_probes", "other_studies")
SECTIONS = (*OTHERS, *GROUPS, *OF_STUDIES)


def check(here: Here) -> Finding:
    """What a command would refuse is a problem; a section that none reads is a note, for it may be your own."""
    params = here.params  # what cannot be read is raised
    if params is None:
        return Finding("params.yaml", "ok", "none in this folder; the commands take options instead")
    problems: list[str] = []
    notes: list[str] = []
    with_timm = find_spec("timm") is not None
    encoders, heads, studies = (
        _names(entries, problems)
        for entries in (lambda: section(params, "encoders"), lambda: heads_of(params), lambda: studies_of(params))
    )
    checks: list[Callable[[], object]] = [lambda: of_project(section(params, "store"))]
    if with_timm:
        checks += [lambda name=name: _encoder(here, name) for name in encoders]  # type: ignore[misc]
    elif encoders:
        notes.append("encoders were not looked at: timm is not installed")
    checks += [lambda name=name: _head(here.folder, name, params, is_in_group=True) for name in heads]  # type: ignore[misc]
    checks += [lambda name=name: _study(here.folder, name, params) for name in studies]  # type: ignore[misc]
    for one in checks:
        try:
            one()
        except BeyondClsError as error:
            problems.append(str(error))
    notes += [unknown("section", name, SECTIONS) for name in params if name not in SECTIONS]
    found = f"encoders: {len(encoders)}, heads: {len(heads)}, studies: {len(studies)}"
    if problems:
        return Finding("params.yaml", "problem", f"{found}; mistakes: {len(problems)}", "\n".join([*problems, *notes]))
    return Finding("params.yaml", "note" if notes else "ok", found, "\n".join(notes))


def _names(entries: Callable[[], dict[str, Any]], problems: list[str]) -> list[str]:
    """Names in a section; none if it cannot be read."""
    try:
        return [str(entry) for entry in entries()]
    except BeyondClsError as error:
        problems.append(str(error))
        return []


def _encoder(here: Here, name: str) -> None:
    """Refuse an encoder that cannot be loaded as it is described.

    Raises:
        BeyondClsError: parameters that nothing reads, values that are none, no such encoder, or no such checkpoint.
    """
    from extract.encoders import ENCODERS, checked_family, load_encoder, timm_names
    from extract.requests import known_statistics
    from extract.transform import CHECKS, checked_transform
    from pipelines.extraction import from_params

    loading, options = from_params(here.folder / PARAMS, name)
    known_statistics(options.get("statistics"))
    checked_transform({option: loading.get(option) for option in CHECKS})
    checked_family(loading.get("family"))
    checkpoint = loading.get("checkpoint")
    if checkpoint is not None and not (here.folder / str(checkpoint)).is_file():
        raise BeyondClsError(f"checkpoint of encoder {name!r} is {checkpoint!r}, which is no file here; correct it, or pull it")
    model = str(loading.get("model") or name)
    if model not in ENCODERS and model.partition(".")[0] not in timm_names():
        # Names of no ViT, and of unusual ones: building it says which. Nothing is fetched.
        load_encoder(name, random_seed=0, model=loading.get("model"), arguments=loading.get("arguments"))


def _head(folder: Path, name: str, params: dict[str, Any], is_in_group: bool = False) -> None:
    """A head of a study, or one that stands in a group.

    Raises:
        BeyondClsError: options that nothing reads, an unknown aggregator, a file of yours that is not there, or a head in a
            group that it does not belong to; what a file of yours reads is not looked at.
    """
    from probe.aggregators import AGGREGATORS, is_custom

    plans, _ = plans_and_run([name], params, {}, {})
    if is_in_group:
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
        BeyondClsError: it, or one of its heads, would be refused.
    """
    study = section(params, studies_of(params)[name][0], name)
    for place in ("encoder", "joined"):
        if place in study and study[place] not in (encoders := section(params, "encoders")):
            raise BeyondClsError(unknown(f"{place} of study {name!r}", str(study[place]), encoders, "Add it to encoders"))
    of_study = params_of_study(params, name)
    for head in of_study["heads"]:
        try:
            _head(folder, head, of_study)
        except BeyondClsError as error:
            raise BeyondClsError(f"study {name!r}: {error}") from error
