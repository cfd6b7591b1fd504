"""Entries of registries that other packages declare, and what is wrong with them."""

import json
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from store.errors import BeyondClsError
from store.plugins import GROUPS, Plugin, Registry, declared, misplaced

HOMES = {
    "encoders": ("extract.encoders", "ENCODERS"),
    "aggregators": ("probe.aggregators", "AGGREGATORS"),
    "statistics": ("extract.attention", "STATISTICS"),
    "block_statistics": ("extract.attention", "PER_BLOCK"),
    "datasets": ("extract.datasets", "DATASETS"),
    "metrics": ("probe.metrics", "PER_IMAGE"),
    "multilabel_metrics": ("probe.metrics", "MULTILABEL"),
}
OF_PACKAGE = re.compile(r"(.+): (\w+)\.(.+)")  # a key of digests of code (pipelines/code)


def check(machine: Machine) -> Finding | None:
    """Each package is imported: one that cannot be is a problem; digests below code/ of another installation are a note."""
    plugins = [plugin for group in GROUPS for plugin in declared(group)]
    packages: dict[str, list[str]] = {}
    for plugin in plugins:
        packages.setdefault(f"{plugin.package} {plugin.version}", []).append(plugin.name)
    faults = [*misplaced(), *(fault for group in GROUPS if declared(group) for fault in _faults(group))]
    outdated = sorted(set(_outdated(machine.folder, plugins)))
    if not packages and not faults and not outdated:
        return None
    found = "; ".join(f"{package}: {', '.join(names)}" for package, names in packages.items()) or "none that can be read"
    remedies = [*faults, *outdated]
    return Finding("plugins", "problem" if faults else "note" if outdated else "ok", found, "\n".join(remedies))


def _faults(group: str) -> list[str]:
    """What is refused of a group, and what cannot be imported."""
    module, name = HOMES[group]
    try:
        registry: Registry[object] = getattr(import_module(module), name)
    except ImportError as error:
        return [f"{group} of other packages were not looked at ({error}); install beyondcls with its extras"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faults = registry.refused()
        for entry in registry.plugins():
            try:
                registry[entry]
            except BeyondClsError as error:
                faults.append(str(error))
    return faults


def _outdated(folder: Path, plugins: list[Plugin]) -> Iterator[str]:
    """Packages whose digests below code/, which `dvc repro` compares, are others now: DVC does not see what is installed."""
    now = {f"{plugin.package}: {plugin.group}.{plugin.name}": plugin for plugin in plugins}
    for file in sorted(folder.glob("code/**/*.json")):
        try:
            digests = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        for key, digest in digests.items() if isinstance(digests, dict) else ():
            match = OF_PACKAGE.fullmatch(key)
            if match and not (key in now and now[key].digest().startswith(str(digest))):
                yield f"{match[1]} has changed since `dvc repro` ran: dvc repro --single-item --force code"
