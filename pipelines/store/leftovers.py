"""What can be removed from a folder of feature sets or a root: each set, with what keeps it where it is."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipelines.store.find import is_feature_set, nbytes_of, staged_in
from pipelines.store.references import md5_of
from pipelines.store.remove import key_at, remove, remove_objects
from store.format.spec import key_in
from store.format.unfinished import is_of_writers, is_stub
from store.moving.transfer import AT_ONCE
from store.places import is_remote, place_at
from store.places.object_store import ObjectStore
from store.places.place import map_parallel
from store.writing.publishing import file_names, foreign

AT_ROOT = re.compile(r"(.+)-([0-9a-f]{32})", re.ASCII)
RECENT = timedelta(days=1)  # an upload whose last file came since may still go on: nobody can lock an object store
FOREIGN = "{} does not belong to a feature set; move it away first"


@dataclass(frozen=True)
class Leftover:
    """A feature set, or in an object store what was written of one.

    Attributes:
        name: of the set, without its key.
        keys: keys in its files and its name.
        state: in words; empty for a whole set.
        why_left: why it must not be removed even if nothing names it; empty if it may be.
        md5: of its zarr.json; None if it has none.
        remove: removes it; raises StoreError if a process is writing it.
    """

    address: str
    name: str
    keys: frozenset[str]
    nbytes: int
    state: str
    why_left: str
    md5: str | None
    remove: Callable[[], None] = field(compare=False)


def leftovers(place: str, at_root: bool) -> list[Leftover]:
    """Feature sets directly in a folder, of a disk or an object store, without stubs.

    Args:
        at_root: only ROOT/NAME-KEY counts; else any feature set.

    Raises:
        StoreError: it cannot be listed.
    """
    if is_remote(place):
        return list(_in_object_store(place))
    folder = Path(place.removeprefix("file://"))
    return list(_in_folder(folder, at_root)) if folder.is_dir() else []


def _in_folder(folder: Path, at_root: bool) -> Iterator[Leftover]:
    for path in sorted(folder.iterdir()):
        named = AT_ROOT.fullmatch(path.name) if at_root else None
        if path.name.startswith(".") or path.is_symlink() or not path.is_dir() or (at_root and not named):
            continue
        if not is_feature_set(path) or is_stub(path):
            continue
        content = (path / "zarr.json").read_bytes() if (path / "zarr.json").is_file() else None
        key = key_in(content) if content else None
        # Writers of an extension with another key count, too.
        writer = next((w for staged in staged_in(path.parent) if staged.feature_set == path and (w := staged.writer)), None)
        why_left = "" if content is not None else f"{path}/zarr.json is missing; remove it by hand"
        if writer or (other := next(foreign(path), None)) is not None:
            why_left = f"being written by {writer}" if writer else FOREIGN.format(other)
        yield Leftover(
            str(path),
            named[1] if named else path.name,
            frozenset(filter(None, (key, named and named[2]))),
            nbytes_of(path),
            "" if key else "damaged",
            why_left,
            None if content is None else md5_of(content),
            lambda path=path: remove(path, path, key_at(path)),  # type: ignore[misc]
        )


def _in_object_store(root: str) -> Iterator[Leftover]:
    sizes: dict[str, dict[str, int]] = {}
    for name, nbytes in place_at(root).sizes().items():
        set_name, _, rest = name.partition("/")
        if rest and AT_ROOT.fullmatch(set_name):
            sizes.setdefault(set_name, {})[rest] = nbytes

    def look(set_name: str) -> Leftover:
        address, files, (name, key) = f"{root}/{set_name}", sizes[set_name], set_name.rsplit("-", 1)
        content = place_at(address).content("zarr.json") if "zarr.json" in files else None
        stated, why_left = key_in(content) if content else None, ""
        if others := [file for file in sorted(files) if not (is_of_writers(file) or file_names()[0].fullmatch(file))]:
            why_left = FOREIGN.format(f"{address}/{others[0]}")
        elif content is None and not _is_old(address):
            why_left = "its last file came within a day, or nobody says when: it may still be being written"
        return Leftover(
            address,
            name,
            frozenset(filter(None, (key, stated))),
            sum(files.values()),
            "not written completely" if content is None else "" if stated else "damaged",
            why_left,
            None if content is None else md5_of(content),
            lambda: remove_objects(address, sorted(files)),
        )

    yield from map_parallel(look, sorted(sizes), AT_ONCE)


def _is_old(address: str) -> bool:
    """Whether the last file at an address is older than RECENT; False if the service gives no times."""
    times = [written for written in ObjectStore(address).times().values() if written is not None]
    return bool(times) and datetime.now(UTC) - max(times) > RECENT
