"""What computed a result: versions of packages, and the kind of machine. Never its name, nor a path."""

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions by package, without importing any; packages that are not installed are left out."""
    by_package = {}
    for package in packages:
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            continue
    return by_package


def machine(device: str) -> dict[str, str]:
    """The kind of this machine, in words; `device`: the model of the GPU that computes, or "cpu"."""
    lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines() if CPUINFO.is_file() else []  # of Linux
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(named, "") or platform.processor() or platform.machine()  # its architecture where nothing names it
    return {"system": platform.system(), "architecture": platform.machine(), "processor": processor, "device": device}
