"""Parameters that all heads of a command share: those of `probe`, of a data set, of an encoder, of a study."""

from collections.abc import Mapping
from typing import Any

from pipelines.parameters.datasets import dataset_of
from pipelines.parameters.engine import ENGINE, check_engine
from pipelines.parameters.layers import Given, Layer
from pipelines.parameters.params import check_names, check_type, section
from pipelines.parameters.training import LOGGING, OF_A_DATASET, OF_AN_ENCODER, shared_parameters


def common_layers(
    params: Mapping[str, Any], encoder: str | None = None, dataset: str | None = None, study: Layer | None = None
) -> list[Layer]:
    """Layers of parameters, each winning over the one before: `probe`, datasets.NAME, encoders.NAME, the study.

    Args:
        params: the parameter file.
        encoder, dataset: names there; None: without what the file says of it.

    Raises:
        BeyondClsError: an unknown name, or a parameter that nothing reads.
    """
    common = section(params, "probe")
    check_names("probe", common, [*shared_parameters(), *ENGINE, *LOGGING])
    engine_of(params)
    logs_of(params)
    layers = [Layer("probe", {name: value for name, value in common.items() if name not in {**ENGINE, **LOGGING}})]
    if dataset is not None:
        values = dataset_of(params, dataset)
        layers.append(Layer(f"datasets.{dataset}", {name: values[name] for name in OF_A_DATASET if name in values}))
    if encoder is not None:
        values = section(params, "encoders", encoder)
        layers.append(Layer(f"encoders.{encoder}", {name: values[name] for name in OF_AN_ENCODER if name in values}))
    return layers if study is None else [*layers, study]


def engine_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Where the parameter file has heads trained: options of ENGINE below `probe`, which are no parameters of a head.

    Raises:
        BeyondClsError: a value of another type.
    """
    common = section(params, "probe")
    given = {name: Given(common[name], "probe") for name in ENGINE if common.get(name) is not None}
    check_engine(given)
    return {name: value.value for name, value in given.items()}


def logs_of(params: Mapping[str, Any]) -> list[str]:
    """Logs that the parameter file has of training: `log` below `probe`.

    Raises:
        BeyondClsError: a value of another type.
    """
    logs = section(params, "probe").get("log")
    if logs is not None:
        check_type("probe.log", logs, LOGGING["log"].type)
    return logs or []
