"""Which files of this project programs import, by running their imports where nothing of it was imported."""

import json
import subprocess
import sys

from tests.machines.project import ROOT

PACKAGES = ("extract", "pipelines", "probe", "store")
# What others make is imported once, each program in a process of its own that begins with it.
SHOW = """
import importlib, json, os, sys
import jinja2, matplotlib.figure, pandas, PIL.Image, scipy.ndimage, sklearn.cluster, sklearn.linear_model, yaml
import timm, torch, torchvision, typer, webdataset, zarr, zarr.storage
for modules in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    for name in modules:
        importlib.import_module(name)
    print(json.dumps([getattr(module, "__file__", None) or "" for module in sys.modules.values()]), flush=True)
    os._exit(0)
"""


def imported(programs: list[list[str]]) -> list[set[str]]:
    """Of each program, a list of modules: paths, relative to the repository, of the project's files that they bring."""
    command = [sys.executable, "-c", SHOW, json.dumps(programs)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imports = [{file.removeprefix(f"{ROOT}/") for file in json.loads(line)} for line in shown.stdout.splitlines()]
    assert len(imports) == len(programs), shown.stderr
    return [{file for file in files if file.startswith(tuple(f"{package}/" for package in PACKAGES))} for files in imports]
