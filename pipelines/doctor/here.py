"""What is checked: this machine, and the folder that the command was given in."""

import contextlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.doctor.dvc_project import Project, find_project
from pipelines.params import mapping, read_params, section
from store.errors import BeyondClsError

PARAMS = "params.yaml"


@dataclass(frozen=True)
class Here:
    """Checks ask it what several of them need.

    Attributes:
        offline: nothing is to be asked of a network.
    """

    folder: Path = Path()
    offline: bool = False

    @property
    def features(self) -> Path:
        """Where feature sets lie by default."""
        return self.folder / "features"

    @cached_property
    def project(self) -> Project | None:
        """The DVC project that the folder is in.

        Raises: BeyondClsError: DVC cannot read its settings.
        """
        return find_project(self.folder)

    @cached_property
    def params(self) -> dict[str, Any] | None:
        """params.yaml; None if there is none.

        Raises: BeyondClsError: it cannot be read.
        """
        file = self.folder / PARAMS
        return read_params(file) if file.exists() else None

    @property
    def store_root(self) -> str | None:
        """`store.root` of params.yaml: where the machines' common feature sets lie. A file that cannot be read has none."""
        with contextlib.suppress(BeyondClsError, OSError):
            root = section(self.params or {}, "store").get("root")
            return str(root) if root else None
        return None

    @property
    def cache(self) -> tuple[Path, float] | None:
        """Folder and bytes of the disk cache (`store.cache`); None where nothing is read from elsewhere."""
        with contextlib.suppress(BeyondClsError, OSError, TypeError, ValueError):
            given = mapping("store.cache", section(self.params or {}, "store").get("cache"))
            if self.store_root and given.get("folder"):
                return self.folder / str(given["folder"]), float(given.get("gb", 0)) * 1e9
        return None


def is_address(root: str) -> bool:
    """Whether a root is no local folder: s3://…"""
    return "://" in root and not root.startswith("file://")


def local_folder(root: str, folder: Path) -> Path:
    """A root that is no address, as a path."""
    return folder / root.removeprefix("file://")


def existing(path: Path) -> Path:
    """The nearest folder above a path, or at it, that is there."""
    path = path.resolve()
    return next(p for p in (path, *path.parents) if p.is_dir())
