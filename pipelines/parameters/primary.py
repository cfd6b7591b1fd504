"""The contrast that a project declares before anything is measured: all others are exploratory."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from store import BeyondClsError


@dataclass(frozen=True)
class Primary:
    """What a head reaches − what another one does, on one encoder; names as in params.yaml."""

    encoder: str
    head: str
    over: str


NAMES = {field.name for field in fields(Primary)}


def primary_of(params: Mapping[str, Any]) -> Primary | None:
    """`primary` of params.yaml; None if nothing was declared. Names that are not there are `beyondcls doctor`'s to find.

    Raises:
        BeyondClsError: it is no mapping of three names.
    """
    given = params.get("primary")
    if given is None:
        return None
    if not isinstance(given, Mapping) or set(given) != NAMES or not all(isinstance(name, str) for name in given.values()):
        raise BeyondClsError(
            f"primary is {given!r}, expected an encoder and two heads of this file, such as "
            "{ encoder: mae, head: abmilp, over: cls }; or null, if no contrast is declared in advance"
        )
    return Primary(**given)
