"""Versions of Python and of the packages that every command needs, compared with the requirements in setup.cfg."""

import platform
from importlib import metadata

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from pipelines.doctor.needed import OURS, conflicts, extras, is_met, requirements, version

SHOWN = ("torch", "zarr", "numpy", "fsspec", "safetensors")


def check(machine: Machine) -> Finding:
    """A version outside of the requirements is a problem, as is one that another package does not accept."""
    from packaging.specifiers import SpecifierSet

    python = platform.python_version()
    if version(OURS) is None:
        observed = f"Python {python}; {OURS} runs from its folder and is not installed, so nothing says which versions it needs"
        return Finding("versions", "note", observed, "pip install '.[extract,probe]' in the folder of beyondcls")
    needed = requirements()
    wrong, remedies = [], []
    supported = SpecifierSet(metadata.metadata(OURS)["Requires-Python"] or "")
    if not supported.contains(python, prereleases=True):
        wrong.append(f"Python {python}, expected {supported}")
        remedies.append(f"make an environment with Python {supported}, and install {OURS} there")
    unmet = [r for r in needed if not is_met(r)]
    for r in unmet:
        expected = f", expected {r.specifier}" if r.specifier else ""
        wrong.append(f"{r.name} is {version(r.name) or 'missing'}{expected}")
    if unmet:
        remedies.append("pip install " + " ".join(f"'{r.name}{r.specifier}'" for r in unmet))
    installed = [r for r in [*needed, *(r for extra in extras() for r in requirements(extra))] if version(r.name)]
    discord = sorted({text for r in installed for text in conflicts(r.name)})
    if discord:
        remedies.append("pip install --upgrade what is named, in one command, so that pip chooses versions that go together")
    if wrong or discord:
        return Finding("versions", "problem", "; ".join([*wrong, *discord]), "\n".join(remedies))
    shown = ", ".join(f"{name} {version(name)}" for name in SHOWN if version(name))
    return Finding("versions", "ok", f"Python {python}, {shown}; all {len(needed)} required packages fit")
