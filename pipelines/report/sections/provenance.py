"""How this was made: feature sets, recipes, versions."""

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Column, Definitions, Heading, Row, Section, Table, Text
from pipelines.report.measured import Probe
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
    """An encoder with the feature sets that it was probed from; `recorded` is the name that extraction recorded."""

    encoder: str
    recorded: str
    training: str
    test: str
    architecture: str
    pretraining: str


def section(inputs: Inputs) -> Section:
    """Keys of the feature sets, how heads were trained and by which commands, versions, revision."""
    text = (
        "Each encoder ran once over the images, frozen. Heads were trained on the stored tokens, one per seed, and measured "
        "on the test images after the last epoch."
    )
    blocks: list[Block] = [Text(text), _feature_sets(inputs), Heading("Training of the heads")]
    for training in trainings(inputs):
        entries = [
            ("Heads", "; ".join(training.heads)),
            ("Recipe", training.recipe),
            ("Seeds", training.seeds),
            ("Selected", training.selected),
            ("Commands", "\n".join(training.commands)),
            ("Images", f"{training.n_training:,} training, {training.n_test:,} test, {training.n_classes:,} classes"),
        ]
        blocks.append(
            Definitions(tuple((term, text_of_term) for term, text_of_term in entries if text_of_term), code=("Commands",))
        )
    entries = [*versions().items(), ("git revision", revision())]
    return Section(
        "provenance",
        "How this was made",
        (*blocks, Heading("Versions"), Definitions(tuple(entries), code=("git revision",))),
    )


def _feature_sets(inputs: Inputs) -> Table:
    titles = {"encoder": "Encoder", "recorded": "Recorded as", "training": "Training key", "test": "Test key"}
    titles |= {"architecture": "Architecture", "pretraining": "Trained by"}
    columns = tuple(Column(name, shown, "text") for name, shown in titles.items())
    rows = [Row(tuple(Cell(text, text) for text in vars(source).values())) for source in sources(inputs)]
    note = "Keys of what heads were trained and tested on: they hold weights, transform, blocks, dtype and images."
    return Table("feature-sets", "Feature sets", note, columns, tuple(rows))


def trainings(inputs: Inputs) -> list[Training]:
    """One entry for each different way of training."""
    groups: dict[tuple[Any, ...], list[Probe]] = {}
    for encoder in inputs.encoders:
        for probe in inputs.probes_of(encoder):
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
    rows = []
    for encoder in inputs.encoders:
        probes, attention = inputs.probes_of(encoder), inputs.attention.get(encoder)
        rows.append(
            Source(
                encoder,
                recorded=_once([p.recorded_encoder for p in probes]),
                training=_once([p.features["training"] for p in probes]),
                test=_once([p.features["test"] for p in probes] + ([attention.key] if attention else [])),
                architecture=_pairs(attention.architecture) if attention else "–",
                pretraining=_once(
                    [p.pretraining.in_words for p in probes] + ([attention.pretraining.in_words] if attention else [])
                ),
            )
        )
    return rows


def versions() -> dict[str, str]:
    """Versions of Python and of PACKAGES, without importing them."""
    by_package = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = "not installed"
    return by_package


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
