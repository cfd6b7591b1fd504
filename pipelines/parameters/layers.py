"""Layers of parameters: of several places that give a value, which one wins; and the layers of all heads of a command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.parameters.datasets import dataset_of
from pipelines.parameters.engine import ENGINE
from pipelines.parameters.options import check_values, flag_of
from pipelines.parameters.params import check_names, section
from pipelines.parameters.training import ALTERNATIVES, CHECKED, LOGGING, OF_A_DATASET, OF_A_RECIPE, OF_AN_ENCODER, SHARED
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


def values_of(given: Mapping[str, Given]) -> dict[str, Any]:
    """Values by name, without where they come from."""
    return {name: one.value for name, one in given.items()}


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
                raise BeyondClsError(f"{_as_flag(one, values)} and {_as_flag(other, values)} exclude each other; give one")
            for new, old in ((one, other), (other, one)):
                if values.get(new) is not None:
                    merged.pop(old, None)
        merged |= {name: Given(value, layer.where) for name, value in values.items()}
    return merged


def _as_flag(name: str, layer: Mapping[str, Any]) -> str:
    value = layer[name]
    return f"{flag_of(name)} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def common_layers(
    params: Mapping[str, Any], encoder: str | None = None, dataset: str | None = None, study: Layer | None = None
) -> list[Layer]:
    """Layers of parameters, each winning over the one before: `probe`, datasets.NAME, encoders.NAME, the study.

    Args:
        params: the parameter file.
        encoder, dataset: names there; None: without what the file says of it.

    Raises:
        BeyondClsError: an unknown name, a parameter that nothing reads, or a value of another type.
    """
    common = _probe(params)
    layers = [Layer("probe", {name: value for name, value in common.items() if name in SHARED})]
    if dataset is not None:
        values = dataset_of(params, dataset)
        layers.append(Layer(f"datasets.{dataset}", {name: values[name] for name in OF_A_DATASET if name in values}))
    if encoder is not None:
        values = section(params, "encoders", encoder)
        layers.append(Layer(f"encoders.{encoder}", {name: values[name] for name in OF_AN_ENCODER if name in values}))
    layers += [] if study is None else [study]
    for layer in layers:
        check_values(f"{layer.where}.", layer.values, CHECKED)
    return layers


def engine_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Where the parameter file has heads trained: options of ENGINE below `probe`, which are no parameters of a head.

    Raises:
        BeyondClsError: a value of another type.
    """
    return {name: value for name, value in _probe(params).items() if name in ENGINE and value is not None}


def logs_of(params: Mapping[str, Any]) -> list[str]:
    """Logs that the parameter file has of training: `log` below `probe`.

    Raises:
        BeyondClsError: a value of another type.
    """
    return _probe(params).get("log") or []


def _probe(params: Mapping[str, Any]) -> dict[str, Any]:
    common, others = section(params, "probe"), {**ENGINE, **LOGGING}
    check_names("probe", common, [*SHARED, *others])
    check_values("probe.", common, others)
    return common
