"""How the numbers were made: recipes, feature sets, versions."""

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipelines.report.collect import Inputs, Probe
from pipelines.report.tables import title

PACKAGES = ("beyondcls", "torch", "timm", "zarr", "numpy")


@dataclass(frozen=True)
class Training:
    """A recipe with the heads that were trained with it."""

    heads: tuple[str, ...]
    commands: tuple[str, ...]
    recipe: str
    seeds: str
    n_training: int
    n_test: int
    n_classes: int
    selected: str


@dataclass(frozen=True)
class Source:
    """An encoder with the feature sets that it was probed from; `recorded` is the name that extraction wrote down."""

    encoder: str
    recorded: str
    training: str
    test: str
    architecture: str


def trainings(inputs: Inputs) -> list[Training]:
    """One entry for each different way of training."""
    groups: dict[tuple[Any, ...], list[Probe]] = {}
    for encoder in inputs.encoders:
        for probe in inputs.of(encoder):
            groups.setdefault(_protocol(probe), []).append(probe)
    return [
        Training(
            tuple(f"{probe.encoder} {_head(probe)}" for probe in probes),
            tuple(dict.fromkeys(probe.command for probe in probes if probe.command)),
            *protocol,
        )
        for protocol, probes in groups.items()
    ]


def _protocol(probe: Probe) -> tuple[Any, ...]:
    seeds = ", ".join(map(str, probe.seeds)) or "none: nothing is random"
    return _pairs(probe.recipe), seeds, probe.n_training, probe.n_test, probe.n_classes, probe.selected


def _head(probe: Probe) -> str:
    return title(probe.head) + (f" ({_pairs(probe.options)})" if probe.options else "")


def sources(inputs: Inputs) -> list[Source]:
    """Feature-set keys of each encoder; several where its heads disagree."""
    found = []
    for encoder in inputs.encoders:
        probes, attention = inputs.of(encoder), inputs.attention.get(encoder)
        found.append(
            Source(
                encoder,
                recorded=_once([p.recorded_encoder for p in probes]),
                training=_once([p.features["training"] for p in probes]),
                test=_once([p.features["test"] for p in probes] + ([attention.key] if attention else [])),
                architecture=_pairs(attention.architecture) if attention else "–",
            )
        )
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, without importing them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def revision() -> str:
    """The commit of the working folder, or `unknown`."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _once(texts: list[str]) -> str:
    """Each text once, in order."""
    return ", ".join(dict.fromkeys(texts)) or "–"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
