"""Which files of this project a stage imports, by running its imports in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What the `main` of stages imports when they run, by the stage of dvc.yaml that lists it.
STAGES = {
    "code-extract": [
        "pipelines.extract",
        "pipelines.device",
        "pipelines.progress",
        "extract.datasets",
        "extract.encoders",
        "extract.run",
    ],
    "code-compose": ["pipelines.quickstart.compose"],
    "code-probe": [
        "pipelines.probe",
        "pipelines.device",
        "pipelines.progress",
        "probe.absent",
        "probe.run",
        "probe.train",
    ],
    "code-attention": ["pipelines.attention", "extract.attention", "store", "store.codecs"],
    "code-divergence": ["pipelines.divergence", "probe.divergence", "probe.metrics"],
    "code-localise": [
        "pipelines.localise",
        "pipelines.progress",
        "probe.localisation",
        "probe.localisation.maps",
        "probe.localisation.truths",
        "probe.results",
    ],
    "code-report": ["pipelines.report.command", "pipelines.report.files", "pipelines.report.sections", "extract.datasets"],
}

SHOW = """
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def imported(modules: list[str]) -> set[str]:
    """Paths, relative to the repository, of the project's modules that importing `modules` brings in."""
    shown = subprocess.run(
        [sys.executable, "-c", SHOW.format(modules=modules)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    inside = {Path(line).resolve() for line in shown.stdout.splitlines() if line.endswith(".py")}
    packages = ("extract", "pipelines", "probe", "store")
    return {
        p.relative_to(ROOT).as_posix() for p in inside if p.is_relative_to(ROOT) and p.relative_to(ROOT).parts[0] in packages
    }
