"""Packages with entry points, installed into folders of their own: nothing here is imported from them by itself."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, MODULE = "beyondcls-newcomers", "beyondcls_newcomers"


def installed(folder: Path) -> Path:
    """A folder for the path of imports, with tests/plugin as pip installs it, without network."""
    source, site = folder / "source", folder / "site"
    shutil.copytree(ROOT / "tests/plugin", source)  # setuptools builds beside the sources
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--target", site)
    command = [sys.executable, "-m", "pip", "install", *map(str, options), str(source)]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return site


def declare(site: Path, package: str, group: str, entries: dict[str, str], version: str = "1.0") -> Path:
    """The same folder with the metadata of one more package; its code is the caller's to write."""
    info = site / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[beyondcls.{group}]", *lines, ""]))
    return site
