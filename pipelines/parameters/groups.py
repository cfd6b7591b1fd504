"""Groups of heads in params.yaml: those that stages train, with the arrays that `dvc repro` fetches for each; and studies.

A study is a group of heads that are trained alike, so that their numbers can be compared, apart from the other heads.
"""

from collections.abc import Mapping
from os.path import normpath
from typing import TYPE_CHECKING, Any

from pipelines.parameters.heads import GROUPS, plans_and_run
from pipelines.parameters.layers import Layer, common_layers
from pipelines.parameters.options import integers
from pipelines.parameters.params import check_names, mapping, section
from pipelines.parameters.training import SHARED
from store import BeyondClsError
from store.format.layout import kind_of
from store.user_code import file_of

if TYPE_CHECKING:
    from probe.grid import HeadPlan

FILES = "heads/"  # the folder that `dvc repro` watches
# Sections of params.yaml with studies by name, and the keys of each study that `dvc.yaml` reads: the data and place of results,
# which it passes to `beyondcls probe` as --features, --joined and --out; and the blocks that are stored for it.
PLACES = {"studies": ("study", "dataset", "encoder", "joined"), "block_studies": ("study", "dataset", "encoder", "stored")}


def studies_of(params: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Section and content of each study, by name.

    Raises:
        BeyondClsError: two sections have studies of one name.
    """
    studies: dict[str, tuple[str, Any]] = {}
    for name in PLACES:
        names = section(params, name)
        if twice := next((study for study in names if study in studies), None):
            raise BeyondClsError(f"study {twice!r} is in {name} and in another section; give one of the two another name")
        studies |= {study: (name, content) for study, content in names.items()}
    return studies


def params_of_study(params: Mapping[str, Any], name: str) -> tuple[dict[str, Any], Layer]:
    """The parameter file as a study sees it, with its heads in place of `heads`; and the parameters of all of them.

    Heads are in the study itself, in the form that they have under `heads`: no other head trains with them, and a change of one
    of them affects only this study.

    Raises:
        BeyondClsError: unknown study or parameter, no heads, or blocks to store that are not integers.
    """
    studies = studies_of(params)
    group = studies[name][0] if name in studies else "studies"
    study, where = section(params, group, name), f"{group}.{name}"
    check_names(where, study, [*PLACES[group], "heads", *SHARED])
    if "stored" in study:
        integers(f"{where}.stored", str(study["stored"]))
    heads = mapping(f"{where}.heads", study.get("heads"))
    if not heads:
        raise BeyondClsError(f"{where} has no heads, expected one or more by name, e.g. heads: {{abmilp: {{}}}}")
    others = {name: value for name, value in params.items() if name not in GROUPS}
    return {**others, "heads": heads}, Layer(where, {n: value for n, value in study.items() if n in SHARED})


def plans_of_study(
    params: Mapping[str, Any],
    name: str,
    command_line: Mapping[str, Any] | None = None,
    encoder: str | None = None,
    dataset: str | None = None,
) -> "tuple[dict[str, HeadPlan], dict[str, Any]]":
    """Plans of a study's heads by name, and parameters of the whole run, as `plans_and_run` gives them.

    Args:
        encoder, dataset: names in the parameter file, whose parameters the study's override.

    Raises:
        BeyondClsError: as `params_of_study` and `plans_and_run`.
    """
    described, layer = params_of_study(params, name)
    layers = common_layers(described, encoder, dataset, layer)
    return plans_and_run(list(described["heads"]), described, command_line or {}, {}, layers)


def check_groups(params: Mapping[str, Any], plans: Mapping[str, "HeadPlan"], runs_files: bool) -> None:
    """Check that the stages of some heads fetch the arrays that these read.

    Args:
        plans: of heads, by name; those that are in no group are skipped.
        runs_files: whether files of custom aggregators may be run, to see what they read.

    Raises:
        BeyondClsError: a head reads more than its group fetches, or its file is in another folder.
    """
    for group, kinds in GROUPS.items():
        for name in section(params, group):
            if name not in plans:
                continue
            aggregator, options = plans[name].head.aggregator, plans[name].head.options
            file = file_of(aggregator)
            if file is not None and not normpath(file).startswith(FILES):
                remedy = f"move it there, and write {FILES}{aggregator.rpartition('/')[2]}"
                raise BeyondClsError(f"{group}.{name} has aggregator {aggregator!r}, expected a file in {FILES}; {remedy}")
            reads = _reads(aggregator, options) if file is None or runs_files else ()
            read = {kind_of(kind) for kind in reads}
            if not read <= set(kinds):
                fetched = f"but for {group} `dvc repro` fetches only {' and '.join(kinds)}; move it to heads"
                raise BeyondClsError(f"{group}.{name} in the parameter file reads {' and '.join(reads)}, {fetched}")


def _reads(aggregator: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Kinds of features that an aggregator reads with these options; none if it cannot be made, which `probe` explains.

    The file of a custom one is run, but no instance is made: its arguments are unknown. A class without `reads` passes.
    """
    import torch

    from probe.aggregators import make_aggregator
    from probe.aggregators.custom import custom_aggregator

    if file_of(aggregator) is not None:
        return tuple(custom_aggregator(aggregator).reads)
    heads = options.get("heads")
    dim = 64 * (heads if isinstance(heads, int) and heads > 0 else 12)  # every head as wide
    try:
        with torch.device("meta"):  # takes no memory
            return tuple(make_aggregator(aggregator, dim, 196, **options).reads)
    except BeyondClsError:
        return ()
