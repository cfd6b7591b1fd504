"""Where a feature set is written, and how it comes to its name when all of it is there."""

import contextlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from pathlib import Path

from store.errors import StoreError
from store.format.layout import ATTRIBUTE
from store.format.unfinished import HEADER, UNNAMED, is_of_writers
from store.places import LocalFolder
from store.places.disk import NO_SPACE, is_abandoned, make_folder, room_left
from store.places.object_store import ObjectStore
from store.places.place import SharedPlace
from store.writing.publishing import PUBLISHING, Found, content_of, discard, discard_records, publish, staging_of

LOOKS, LOOK_S = 20, 0.05  # for a set that another process is about to publish
JOURNAL = "journal"  # of earlier versions


class Destination(ABC):
    """Where a feature set is written.

    Attributes:
        place: in which its files are created; any number of processes may do so.
        where: its address when it is finished, for messages.
    """

    place: SharedPlace
    where: str

    @abstractmethod
    def is_published(self) -> bool:
        """Whether the finished set is there.

        Raises:
            StoreError: another one is.
        """

    @abstractmethod
    def begin(self, files: Collection[str]) -> None:
        """Prepare the place.

        Args:
            files: paths of all that the set will have.

        Raises:
            StoreError: something is in the way.
        """

    @abstractmethod
    def publish(self) -> None:
        """Give the set its name, now that all of it is there, unless another process does; and remove what writers keep.

        Raises:
            StoreError: something is in the way; nothing is lost.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Remove what a writer has begun beside a finished set, or found empty."""

    @contextlib.contextmanager
    def reporting(self, needed: int) -> Iterator[None]:
        """Turn errors of the system into messages.

        Args:
            needed: bytes that are still to be written.
        """
        yield


class InFolder(Destination):
    """Beside its place, in `.staging/NAME-KEY`: a set appears there whole, and may take the place of another.

    Whoever publishes it first renames the staging folder to a name of its own, which one process alone can. If that process
    is killed, another gives the folder its name back.

    Args:
        found: what was at `path` when this run began.
    """

    def __init__(self, path: Path, key: str, found: Found):
        self.path, self.where, self._key, self._found = path, str(path), key, found
        self.staging = staging_of(path, key)
        self.place = LocalFolder(self.staging, UNNAMED)

    def is_published(self) -> bool:
        for _ in range(LOOKS):
            if (content := content_of(self.path)) not in (None, self._found.content) and _key_in(content) == self._key:
                return True
            if not self._taken_away():
                return False
            time.sleep(LOOK_S)
        for left in self._taken_away():  # by a process that was killed
            if not (self.staging / HEADER).exists():
                with contextlib.suppress(OSError):
                    self.staging.rmdir()
                with contextlib.suppress(OSError):  # another was faster
                    os.rename(left, self.staging)
        return False

    def _taken_away(self) -> list[Path]:
        """Folders of this set that a process was about to publish."""
        return [f for f in self.staging.parent.glob(f"{self.staging.name}.*{PUBLISHING}") if (f / HEADER).is_file()]

    def begin(self, files: Collection[str]) -> None:
        self._found.check()
        if (self.staging / JOURNAL).exists():
            raise StoreError(
                f"{self.staging} was begun by an earlier version, which alone can go on with it; finish it there, or "
                f"remove it: beyondcls store rm --staging {self.path}"
            )
        make_folder(self.staging / UNNAMED)
        for left in filter(is_abandoned, (self.staging / UNNAMED).iterdir()):
            left.unlink(missing_ok=True)

    def publish(self) -> None:
        if not publish(self.staging, self.path, self._found) and not self.is_published():
            raise StoreError(f"{self.staging} was removed while it was being written; give the command again")

    def tidy(self) -> None:
        if self.is_published() and self.staging.is_dir():
            discard(self.staging)
        with contextlib.suppress(OSError):  # something is staged there
            self.staging.parent.rmdir()

    @contextlib.contextmanager
    def reporting(self, needed: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise StoreError(
                f"no space left while writing {self.path}: what is written is safe in {self.staging}; {needed / 1e9:.3g} GB "
                f"more are needed, {room_left(error, self.path.parent)}, and give the same command again"
            ) from error


class InObjectStore(Destination):
    """At its final address, where the group's zarr.json, which is written last, makes it a feature set."""

    def __init__(self, place: ObjectStore, key: str):
        if not place.can_create:
            raise StoreError(f"{place.url} is of no service that writes a file only where there is none; give --out, a folder")
        self.place, self.where, self._key = place, place.url, key

    def is_published(self) -> bool:
        if (content := self.place.content_now("zarr.json")) is None:
            return False
        if (key := _key_in(content)) != self._key:
            raise StoreError(f"{self.where} holds another feature set, of key {key}; remove it, or choose another root")
        return True

    def begin(self, files: Collection[str]) -> None:
        if foreign := sorted(name for name in self.place.sizes().keys() - set(files) if not is_of_writers(name)):
            raise StoreError(
                f"{self.where} holds {len(foreign)} files that do not belong to this set, first {foreign[0]}; "
                "was it begun with other shards? Remove them, or choose another root"
            )

    def publish(self) -> None:
        discard_records(self.place)

    def tidy(self) -> None:
        if self.is_published():
            discard_records(self.place)


def _key_in(content: bytes) -> str | None:
    """The key in a group's zarr.json."""
    try:
        return json.loads(content)["attributes"][ATTRIBUTE]["key"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
