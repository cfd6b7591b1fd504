"""What can be removed from a folder of feature sets or a root: whole sets, and remains of unfinished work."""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipelines.sharing.publish import SCRATCH
from pipelines.store.find import REMOVED, is_feature_set, nbytes_of, staged_in
from pipelines.store.remove import key_at, remove, remove_objects
from store.format.spec import key_in
from store.format.unfinished import is_of_writers, is_stub
from store.moving.transfer import AT_ONCE, PULLED
from store.places import LocalFolder, is_remote, place_at
from store.places.place import map_parallel
from store.writing.claims import ALONE, alone, holder
from store.writing.publishing import file_names, foreign

AT_ROOT = re.compile(r"(.+)-([0-9a-f]{32})", re.ASCII)
RECENT = timedelta(days=1)  # an upload whose last file came since may still go on: nobody can lock an object store


@dataclass(frozen=True)
class Leftover:
    """A feature set, or the remains of one.

    Attributes:
        name: of the set, without its key.
        keys: keys in its files and its name.
        md5: of its zarr.json; None if it has none.
        state: in words; empty for a whole set.
        why_left: why it must not be removed even if nothing refers to it; empty if it may be.
        unfinished: making the set would go on from it; it is useless once the set is whole.
        is_rest: nothing goes on from it, so it is useless even if something refers to the set.
        remove: removes it; raises StoreError if a process is writing it.
    """

    address: str
    name: str
    keys: frozenset[str]
    nbytes: int
    remove: Callable[[], None] = field(compare=False)
    md5: str | None = None
    state: str = ""
    why_left: str = ""
    unfinished: bool = False
    is_rest: bool = False


def leftovers(place: str, at_root: bool) -> list[Leftover]:
    """Leftovers directly in a folder, of a disk or an object store, without stubs.

    Args:
        at_root: only ROOT/NAME-KEY counts; else any feature set.

    Raises:
        StoreError: it cannot be listed.
    """
    if is_remote(place):
        return list(_in_object_store(place))
    folder = Path(place.removeprefix("file://"))
    if not folder.is_dir():
        return []
    return [*_sets(folder, at_root), *_staged(folder, at_root), *_on_their_way(folder)]


def _sets(folder: Path, at_root: bool) -> Iterator[Leftover]:
    for path in sorted(folder.iterdir()):
        named = AT_ROOT.fullmatch(path.name) if at_root else None
        if path.name.startswith(".") or path.is_symlink() or not path.is_dir() or (at_root and not named):
            continue
        if not is_feature_set(path) or is_stub(path):
            continue
        file = path / "zarr.json"
        content = file.read_bytes() if file.is_file() else None
        key = content and key_in(content)
        name, keys = (named[1], {named[2], key}) if named else (path.name, {key})
        why_left = _why_left(path) or ("" if content is not None else f"{file} is missing; remove it by hand")
        yield Leftover(
            str(path),
            name,
            frozenset(key for key in keys if key),
            nbytes_of(path),
            lambda path=path: remove(path, path, key_at(path)),  # type: ignore[misc]
            None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest(),
            "" if key else "damaged",
            why_left or _written(path),
        )


def _written(path: Path) -> str:
    """Who is writing the feature set at a path, including an extension with another key."""
    writers = (staged.writer for staged in staged_in(path.parent) if staged.feature_set == path)
    return next((f"being written by {writer}" for writer in writers if writer), "")


def _why_left(path: Path) -> str:
    foreign_path = next(foreign(path), None)
    return "" if foreign_path is None else f"{foreign_path} does not belong to a feature set; move it away first"


def _staged(folder: Path, at_root: bool) -> Iterator[Leftover]:
    """Leftovers under .staging: sets that are partly written or half removed."""
    for staged in staged_in(folder):
        named = AT_ROOT.fullmatch(staged.feature_set.name) if at_root else None
        rest = staged.folder.name.startswith(REMOVED)
        writer = staged.writer
        yield Leftover(
            str(staged.folder),
            named[1] if named else staged.feature_set.name,
            frozenset({staged.key}),
            nbytes_of(staged.folder),
            lambda staged=staged: remove(staged.folder, staged.feature_set, staged.key),  # type: ignore[misc]
            state=staged.state(),
            why_left=f"being written by {writer}" if writer else _why_left(staged.folder),
            unfinished=True,
            is_rest=rest,
        )


def _on_their_way(folder: Path) -> Iterator[Leftover]:
    """Leftovers under .upload and .pull: sets to be sent to a root, or fetched from there."""
    for place, state in ((folder / SCRATCH, "not uploaded yet"), (folder / PULLED, "not fetched yet")):
        yield from _staged(place, at_root=True)
        for path in sorted(place.glob("*")):
            base = path.name.removesuffix(".removed")
            if (named := AT_ROOT.fullmatch(base)) is None or not path.is_dir():
                continue
            writer = holder(LocalFolder(place / f"{base}{ALONE}"))
            yield Leftover(
                str(path),
                named[1],
                frozenset({named[2]}),
                nbytes_of(path),
                lambda path=path, base=base, key=named[2]: _remove_alone(path, path.with_name(base), key),  # type: ignore[misc]
                state=state if base == path.name else "half removed",
                why_left=f"being written by {writer}" if writer else _written(path) or _why_left(path),
                unfinished=True,
                is_rest=base != path.name,
            )


def _remove_alone(path: Path, named: Path, key: str) -> None:
    with alone(named, str(path)):
        remove(path, named, key)
    with suppress(OSError):  # not empty
        path.parent.rmdir()


def _in_object_store(root: str) -> Iterator[Leftover]:
    sizes: dict[str, dict[str, int]] = {}
    for name, nbytes in place_at(root).sizes().items():
        set_name, _, rest = name.partition("/")
        if rest and AT_ROOT.fullmatch(set_name):
            sizes.setdefault(set_name, {})[rest] = nbytes

    def look(set_name: str) -> Leftover:
        address, files = f"{root}/{set_name}", sizes[set_name]
        named = AT_ROOT.fullmatch(set_name)
        assert named is not None
        content = place_at(address).content("zarr.json") if "zarr.json" in files else None
        key = content and key_in(content)
        why_left = next(
            (f"{address}/{f} does not belong to a feature set; move it away first" for f in sorted(files) if not _ours(f)), ""
        )
        if content is None and not why_left and not _is_old(address):
            why_left = "its last file came within a day, or nobody says when: it may still be being written"
        return Leftover(
            address,
            named[1],
            frozenset(key for key in (named[2], key) if key),
            sum(files.values()),
            lambda: remove_objects(address, sorted(files)),
            None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest(),
            "not written completely" if content is None else "" if key else "damaged",
            why_left,
            unfinished=content is None,
        )

    yield from map_parallel(look, sorted(sizes), AT_ONCE)


def _ours(file: str) -> bool:
    return is_of_writers(file) or bool(file_names()[0].fullmatch(file))


def _is_old(address: str) -> bool:
    """Whether the last file at an address is older than RECENT; False if the service gives no times."""
    from store.places.object_store import ObjectStore

    times = [written for written in ObjectStore(address).times().values() if written is not None]
    return bool(times) and datetime.now(UTC) - max(times) > RECENT
