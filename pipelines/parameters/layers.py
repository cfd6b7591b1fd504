"""Layers of parameters: of several places that give a value, which one wins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.parameters.options import flag_of
from pipelines.parameters.training import ALTERNATIVES, OF_A_RECIPE
from store import BeyondClsError


@dataclass(frozen=True)
class Layer:
    """Parameters by name, and where they were given: `probe`, `encoders.mae-h14`, `the command line`."""

    where: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """The value that wins, and where it was given."""

    value: Any
    where: str


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of all layers; the last one wins, as `resolve` says.

    Raises:
        BeyondClsError: a layer gives two that exclude each other.
    """
    return {name: given.value for name, given in resolve([Layer("", values) for values in layers]).items()}


def resolve(layers: Sequence[Layer]) -> dict[str, Given]:
    """Parameters of all layers, and where each was given; the last one wins.

    A preset replaces the whole recipe of the layers before it, its grid, and where the classifier starts.

    Raises:
        BeyondClsError: a layer gives two that exclude each other.
    """
    merged: dict[str, Given] = {}
    for layer in layers:
        values = layer.values
        if values.get("preset") is not None:
            merged = {n: v for n, v in merged.items() if n not in (*OF_A_RECIPE, "base_lrs", "weight_decays", "init")}
        for one, other in ALTERNATIVES:
            if values.get(one) is not None and values.get(other) is not None:
                raise BeyondClsError(
                    f"{_as_flag(one, values)} and {_as_flag(other, values)} exclude each other; give one of them"
                )
            for new, old in ((one, other), (other, one)):
                if values.get(new) is not None:
                    merged.pop(old, None)
        merged |= {name: Given(value, layer.where) for name, value in values.items()}
    return merged


def _as_flag(name: str, layer: Mapping[str, Any]) -> str:
    value = layer[name]
    return f"{flag_of(name)} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"
