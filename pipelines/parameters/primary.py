"""The contrast that a project declares before anything is measured: all others are exploratory."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pipelines.parameters.heads import heads_of
from pipelines.parameters.params import section
from store import BeyondClsError
from store.errors import unknown


@dataclass(frozen=True)
class Primary:
    """What a head reaches − what another one does, on one encoder; names as in params.yaml."""

    encoder: str
    head: str
    over: str


NAMES = tuple(field.name for field in fields(Primary))


def primary_of(params: Mapping[str, Any]) -> Primary | None:
    """`primary` of params.yaml; None if nothing was declared.

    Raises:
        BeyondClsError: it is no mapping of three names, or an encoder or a head that the project does not have.
    """
    given = params.get("primary")
    if given is None:
        return None
    if not isinstance(given, Mapping) or set(given) != set(NAMES) or not all(isinstance(name, str) for name in given.values()):
        raise BeyondClsError(
            f"primary is {given!r}, expected an encoder and two heads of this file, such as "
            "{ encoder: mae, head: abmilp, over: cls }; or null, if no contrast is declared in advance"
        )
    heads = heads_of(params)
    for name, kind, known in (
        ("encoder", "encoder", section(params, "encoders")),
        ("head", "head", heads),
        ("over", "head", heads),
    ):
        if given[name] not in known:
            raise BeyondClsError(f"primary: {unknown(kind, given[name], known)}")
    return Primary(**given)
