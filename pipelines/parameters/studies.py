"""Studies: groups of heads that are trained alike, so that their numbers can be compared, apart from the other heads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.parameters.groups import GROUPS
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.layers import Layer, common_layers
from pipelines.parameters.options import integers
from pipelines.parameters.params import check_names, mapping, section
from pipelines.parameters.training import SHARED
from store import BeyondClsError

if TYPE_CHECKING:
    from probe.grid import HeadPlan

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
