"""How this was made: feature sets, recipes, versions."""

import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Definitions, Heading, Section, Table, Text
from pipelines.report.measured import Attention, Probe
from pipelines.report.tables import pairs, table, texts, title

PACKAGES = ("beyondcls", "torch", "timm", "zarr", "numpy")


def section(inputs: Inputs) -> Section:
    """Keys of the feature sets, how heads were trained and by which commands, versions, revision."""
    text = (
        "Each encoder ran once over the images, frozen. Heads were trained on the stored tokens, one per seed, and measured "
        "on the test images after the last epoch."
    )
    blocks: list[Block] = [Text(text), _feature_sets(inputs), Heading("Training of the heads")]
    for protocol, probes in trainings(inputs).items():
        commands = dict.fromkeys(probe.command for probe in probes if probe.command)
        entries = (
            ("Heads", "; ".join(f"{probe.encoder} {_head(probe)}" for probe in probes)),
            *protocol,
            ("Commands", "\n".join(commands)),
        )
        blocks.append(Definitions(tuple(entry for entry in entries if entry[1]), code=("Commands",)))
    made_with = (*versions().items(), ("git revision", revision()))
    return Section(
        "provenance", "How this was made", (*blocks, Heading("Versions"), Definitions(made_with, code=("git revision",)))
    )


def _feature_sets(inputs: Inputs) -> Table:
    """Keys of each encoder; several where its heads disagree."""

    def once(heads: Callable[[Probe], str], attention: Callable[[Attention], str] | None = None) -> Callable[[str], str]:
        def of_encoder(encoder: str) -> str:
            of_attention = [attention(inputs.attention[encoder])] if attention and encoder in inputs.attention else []
            return ", ".join(dict.fromkeys([*map(heads, inputs.probes_of(encoder)), *of_attention]))

        return of_encoder

    def architecture(encoder: str) -> str:
        return pairs(inputs.attention[encoder].architecture) if encoder in inputs.attention else ""

    return table(
        "feature-sets",
        "Feature sets",
        "Keys of what heads were trained and tested on: they hold weights, transform, blocks, dtype and images.",
        inputs.encoders,
        texts("encoder", "Encoder", str),
        texts("recorded", "Recorded as", once(lambda probe: probe.recorded_encoder)),
        texts("training", "Training key", once(lambda probe: probe.features["training"])),
        texts("test", "Test key", once(lambda probe: probe.features["test"], lambda attention: attention.key)),
        texts("architecture", "Architecture", architecture),
        texts("pretraining", "Trained by", once(lambda p: p.pretraining.in_words, lambda a: a.pretraining.in_words)),
    )


def trainings(inputs: Inputs) -> dict[tuple[tuple[str, str], ...], list[Probe]]:
    """The probes of each different way of training, which is terms and their texts."""
    groups: dict[tuple[tuple[str, str], ...], list[Probe]] = {}
    for encoder in inputs.encoders:
        for probe in inputs.probes_of(encoder):
            protocol = (
                ("Recipe", pairs(probe.recipe)),
                ("Seeds", ", ".join(map(str, probe.seeds)) or "none: nothing is random"),
                ("Selected", probe.selected),
                ("Images", f"{probe.n_training:,} training, {probe.n_test:,} test, {probe.n_classes:,} classes"),
            )
            groups.setdefault(protocol, []).append(probe)
    return groups


def _head(probe: Probe) -> str:
    return title(probe.head) + (f" ({pairs(probe.options)})" if probe.options else "")


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
