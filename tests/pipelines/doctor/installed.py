"""Installed packages, as a test wants them."""

from importlib import metadata

import pytest

SELF = {
    "Requires-Dist": [
        "torch>=2.6",
        "zarr>=3.1",
        "pyyaml",
        'timm>=1.0.20; extra == "extract"',
        'torchvision; extra == "extract"',
        's3fs; extra == "s3"',
        'beyondcls[extract,s3]; extra == "dev"',
        'dvc; extra == "dev"',
    ],
    "Provides-Extra": ["extract", "s3", "dev"],
}
ALL = {
    "beyondcls": "0.1.0",
    "torch": "2.7.0+cu126",
    "zarr": "3.1.6",
    "pyyaml": "6.0",
    "timm": "1.0.22",
    "torchvision": "0.22.0",
}
ALL |= {"s3fs": "2026.1", "dvc": "3.60.0"}


class _Metadata(dict):
    def get_all(self, name):
        return SELF[name]


def install(monkeypatch: pytest.MonkeyPatch, python: str = ">=3.11", needs: dict | None = None, **changes: str | None) -> None:
    """As if these versions were installed: ALL, with changes; None is missing. `needs`: requirements of some of them."""
    versions = {name: v for name, v in (ALL | changes).items() if v is not None}
    requires = {"beyondcls": SELF["Requires-Dist"], **(needs or {})}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: requires.get(name))
    monkeypatch.setattr(metadata, "metadata", lambda name: _Metadata({"Requires-Python": python}))
