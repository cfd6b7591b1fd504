"""Studies: groups of heads that are trained alike, so that their numbers can be compared, apart from the other heads."""

from collections.abc import Mapping
from typing import Any

from pipelines.heads import SECTIONS, layered, of_a_command
from pipelines.params import check_names, mapping, section

# What results are of, and where they go: `dvc.yaml` reads these, and tells `beyondcls probe` by --features, --joined and --out.
PLACES = ("study", "encoder", "joined")


def params_of_study(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The parameter file as a study sees it: its heads in place of `heads`, and its parameters before those of `probe`.

    Heads stand in the study itself, in the form that they have under `heads`: no other head trains with them, and a change of
    one of them concerns this study alone.

    Raises: BeyondClsError: unknown study or parameter, or no heads.
    """
    from store import BeyondClsError

    study = section(params, "studies", name)
    of_a_run = of_a_command()
    check_names(f"studies.{name}", study, [*PLACES, "heads", *of_a_run])
    heads = mapping(f"studies.{name}.heads", study.get("heads"))
    if not heads:
        raise BeyondClsError(f"studies.{name} has no heads, expected one or more by name, e.g. heads: {{abmilp: {{}}}}")
    own = {parameter: value for parameter, value in study.items() if parameter in of_a_run}
    others = {name: value for name, value in params.items() if name not in SECTIONS}
    return {**others, "heads": heads, "probe": layered(section(params, "probe"), own)}
