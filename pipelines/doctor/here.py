"""What is checked: this machine, and the folder that the command was given in."""

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.doctor.dvc_project import Project, find_project
from pipelines.params import read_params, section
from store.errors import BeyondClsError

if TYPE_CHECKING:
    from pipelines.places import Places

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

        Raises:
            BeyondClsError: DVC cannot read its settings.
        """
        return find_project(self.folder)

    @cached_property
    def params(self) -> dict[str, Any] | None:
        """params.yaml; None if there is none.

        Raises:
            BeyondClsError: it cannot be read.
        """
        file = self.folder / PARAMS
        return read_params(file) if file.exists() else None

    @cached_property
    def places(self) -> "Places":
        """What params.yaml and the user's configuration say of `store`.

        Raises:
            BeyondClsError: one of them cannot be read, or says what means nothing.
        """
        from pipelines.places import Places

        return Places.from_section(section(self.params or {}, "store"), self.folder / PARAMS)

    @property
    def store_root(self) -> str | None:
        """Where the common feature sets of machines and projects lie. Files that cannot be read name none."""
        with contextlib.suppress(BeyondClsError, OSError):
            return self.places.root
        return None

    @property
    def cache(self) -> tuple[Path, float] | None:
        """Folder and bytes of the disk cache (`store.cache`); None where nothing is read from elsewhere."""
        with contextlib.suppress(BeyondClsError, OSError):
            if self.places.root and self.places.cache:
                folder, nbytes = self.places.cache
                given = section(self.params or {}, "store").get("cache")
                return self.folder / os.path.expanduser(given["folder"]) if given else folder, nbytes
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
