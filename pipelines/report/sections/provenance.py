"""How this was made: feature sets, recipes, versions."""

import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, Text, section_of
from pipelines.report.measured import AttentionResult, Probe
from pipelines.report.tables import each, pairs, table, texts, title

ABOUT = (
    "Each encoder ran once over the images, frozen. Heads were trained on the stored tokens, one per seed, and measured on the "
    "test images after the last epoch."
)
TERMS = ("Recipe", "Seeds", "Selected", "Images")
PACKAGES = ("beyondcls", "torch", "timm", "zarr", "numpy")


def section(inputs: Inputs) -> Section:
    """Keys of the feature sets, how heads were trained, versions and revision."""
    return section_of("provenance", "How this was made", Text(ABOUT), _feature_sets(inputs), _trainings(inputs), _versions())


def _feature_sets(inputs: Inputs) -> Table:
    """Keys of each encoder; several where its heads disagree."""

    def once(heads: Callable[[Probe], str], attention: Callable[[AttentionResult], str] | None = None) -> Callable[[str], str]:
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


def _trainings(inputs: Inputs) -> Table:
    """A row for each different way of training, with the heads that were trained so."""
    ways: dict[tuple[str, ...], list[Probe]] = {}
    for probe in (probe for encoder in inputs.encoders for probe in inputs.probes_of(encoder)):
        seeds = ", ".join(map(str, probe.seeds)) or "none: nothing is random"
        images = f"{probe.n_training:,} training, {probe.n_test:,} test, {probe.n_classes:,} classes"
        ways.setdefault((pairs(probe.recipe), seeds, probe.selected, images), []).append(probe)
    return table(
        "trainings",
        "Training of the heads",
        "Commands are in the table of every probe.",
        ways.items(),
        texts("heads", "Heads", lambda way: "; ".join(f"{probe.encoder} {_head(probe)}" for probe in way[1])),
        each(range(4), lambda i: texts(TERMS[i].lower(), TERMS[i], lambda way: way[0][i])),
    )


def _head(probe: Probe) -> str:
    return title(probe.head) + (f" ({pairs(probe.options)})" if probe.options else "")


def _versions() -> Table:
    rows = [*versions().items(), ("git revision", revision())]
    columns = (texts("name", "Name", lambda row: row[0]), texts("version", "Version", lambda row: row[1]))
    return table("versions", "Versions", "Of what wrote this page.", rows, *columns)


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
