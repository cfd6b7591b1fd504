"""The subject of all checks: this machine, and the folder that the command runs in."""

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.doctor.dvc_project import Project, find_project
from pipelines.parameters.params import read_params, section
from store.errors import BeyondClsError

if TYPE_CHECKING:
    from pipelines.sharing.places import Places

PARAMS = "params.yaml"


@dataclass(frozen=True)
class Machine:
    """Facts that several checks need.

    Attributes:
        folder: the folder that the command runs in.
        offline: no check may use the network.
    """

    folder: Path = Path()
    offline: bool = False

    @property
    def features(self) -> Path:
        """The default folder of feature sets."""
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
        """Where params.yaml and the user's configuration (`store`) put feature sets.

        Raises:
            BeyondClsError: one of them cannot be read, or has an invalid name or value.
        """
        from pipelines.sharing.places import Places

        return Places.from_section(section(self.params or {}, "store"), self.folder / PARAMS)

    @property
    def store_root(self) -> str | None:
        """The root of feature sets that machines and projects share; None also if the files cannot be read."""
        with contextlib.suppress(BeyondClsError, OSError):
            return self.places.root
        return None

    @property
    def cache(self) -> tuple[Path, float] | None:
        """Folder and bytes of the disk cache (`store.cache`); None where nothing is read from elsewhere."""
        with contextlib.suppress(BeyondClsError, OSError):
            if self.places.root and self.places.cache:
                folder, nbytes = self.places.cache
                entry = section(self.params or {}, "store").get("cache")
                return self.folder / os.path.expanduser(entry["folder"]) if entry else folder, nbytes
        return None


def local_folder(root: str, folder: Path) -> Path:
    """The path of a root that is not an address."""
    return folder / root.removeprefix("file://")


def existing(path: Path) -> Path:
    """The nearest existing folder at or above a path."""
    path = path.resolve()
    return next(p for p in (path, *path.parents) if p.is_dir())
