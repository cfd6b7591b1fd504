"""Studies: groups of heads that are trained alike, so that their numbers can be compared, apart from the other heads."""

from collections.abc import Mapping
from typing import Any

from pipelines.parameters.groups import GROUPS
from pipelines.parameters.heads import layered, shared_parameters
from pipelines.parameters.params import check_names, integers, mapping, section

# Sections of params.yaml with studies by name, and the keys of each study that `dvc.yaml` reads: the data and place of results,
# which it passes to `beyondcls probe` as --features, --joined and --out; and the blocks that are stored for it.
PLACES = {"studies": ("study", "encoder", "joined"), "block_studies": ("study", "encoder", "stored")}


def studies_of(params: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Section and content of each study, by name.

    Raises:
        BeyondClsError: two sections have studies of one name.
    """
    from store import BeyondClsError

    studies: dict[str, tuple[str, Any]] = {}
    for name in PLACES:
        names = section(params, name)
        if twice := next((study for study in names if study in studies), None):
            raise BeyondClsError(f"study {twice!r} is in {name} and in another section; give one of the two another name")
        studies |= {study: (name, content) for study, content in names.items()}
    return studies


def params_of_study(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The parameter file as a study sees it: its heads in place of `heads`, and its parameters override those of `probe`.

    Heads are in the study itself, in the form that they have under `heads`: no other head trains with them, and a change of one
    of them affects only this study.

    Raises:
        BeyondClsError: unknown study or parameter, no heads, or blocks to store that are not integers.
    """
    from store import BeyondClsError

    studies = studies_of(params)
    group = studies[name][0] if name in studies else "studies"
    study, where = section(params, group, name), f"{group}.{name}"
    parameters = shared_parameters()
    check_names(where, study, [*PLACES[group], "heads", *parameters])
    if "stored" in study:
        integers(f"{where}.stored", str(study["stored"]))
    heads = mapping(f"{where}.heads", study.get("heads"))
    if not heads:
        raise BeyondClsError(f"{where} has no heads, expected one or more by name, e.g. heads: {{abmilp: {{}}}}")
    study_parameters = {parameter: value for parameter, value in study.items() if parameter in parameters}
    others = {name: value for name, value in params.items() if name not in GROUPS}
    return {**others, "heads": heads, "probe": layered(section(params, "probe"), study_parameters)}
