"""Which files of this project a program imports, by running its imports in a fresh interpreter."""

import subprocess
import sys

from tests.machines.project import ROOT

PACKAGES = ("extract", "pipelines", "probe", "store")
SHOW = """
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def imported(modules: list[str]) -> set[str]:
    """Paths, relative to the repository, of the project's modules that importing `modules` brings in."""
    script = SHOW.format(modules=modules)
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {line.removeprefix(f"{ROOT}/") for line in shown.stdout.splitlines() if line.endswith(".py")}
    return {file for file in files if file.startswith(tuple(f"{package}/" for package in PACKAGES))}
