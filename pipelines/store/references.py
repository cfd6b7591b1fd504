"""What names feature sets in a project as it is now: lock files of DVC, receipts, stubs, and copies that lack arrays."""

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pipelines.sharing.places import FEATURES, RECEIPTS
from pipelines.store.find import is_feature_set
from store import FeatureStore, StoreError
from store.format.layout import KINDS, kind_of
from store.format.spec import key_in
from store.format.unfinished import is_stub
from store.moving.receipt import Receipt, is_receipt_name
from store.places import is_remote

LOCK = "dvc.lock"
EXPERIMENTS = ".dvc/tmp/exps"  # where DVC runs experiments
ProjectOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--project", help="folder of another project, or a lock file (git show BRANCH:dvc.lock > FILE), that names sets, too"
    ),
]


@dataclass(frozen=True)
class Reference:
    """A reference to a feature set.

    Attributes:
        name: of the set, in the reference; at a root it may have another name.
        source: what refers to it, in words.
        key: of the set; None if it is unknown here.
        md5: of the set's zarr.json, if a lock file gives it.
        folder: of the set, without links, if it is an output in a lock file.
    """

    name: str
    source: str
    key: str | None = None
    md5: str | None = None
    folder: Path | None = None


def locked(projects: Sequence[Path] | None) -> list[Reference]:
    """References in dvc.lock of the working folder, if it has one, and in those of other projects, or in other lock files."""
    files = [Path(LOCK), *(place / LOCK if place.is_dir() else place for place in projects or ())]
    return [one for file in files if file.is_file() or file != files[0] for one in of_lock_file(file)]


def naming(address: str, keys: Collection[str], content: bytes | None, references: Sequence[Reference]) -> str:
    """What names a set, by its folder, its keys or the content of its zarr.json; empty if nothing does."""
    md5, folder = content and md5_of(content), None if is_remote(address) else Path(os.path.realpath(address))
    names = (r.source for r in references if r.key in keys or (md5 and md5 == r.md5) or (folder and folder == r.folder))
    return next(names, "")


def references_in(place: Path, without: Collection[Path] = ()) -> list[Reference]:
    """References in a project's files, hidden folders but for DVC's experiments left out; or in one lock file.

    Args:
        place: the project's folder; or the file.
        without: folders below it that are roots, whose sets are not references.

    Raises:
        StoreError: there is nothing, or a file that may refer to any set cannot be read.
    """
    place = Path(os.path.abspath(place))
    if place.is_file():
        return of_lock_file(place)
    if not place.is_dir():
        raise StoreError(f"there is no folder {place}; name that of a project, or a lock file")
    linked = (place / name for name in (FEATURES, RECEIPTS) if (place / name).is_symlink())  # to another disk, say
    roots = {Path(os.path.realpath(root)) for root in without}
    return [one for start in (place, *linked, place / EXPERIMENTS) for one in _below(start, roots)]


def _below(start: Path, roots: Collection[Path]) -> Iterator[Reference]:
    for where, subfolders, names in os.walk(start, onerror=_unreadable):
        folder = Path(where)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and folder / name not in roots)
        if "zarr.json" in names and is_feature_set(folder):
            subfolders.clear()
            yield from _of_part(folder)
            continue
        for file in (folder / name for name in sorted(names)):
            if file.name == LOCK or file.suffix == ".dvc":
                yield from of_lock_file(file)
            elif folder.name == RECEIPTS and is_receipt_name(file.name):
                yield Reference(file.stem, _shown(file), Receipt.read(file).key)


def of_lock_file(file: Path) -> list[Reference]:
    """References among the outputs of a lock file: NAME/zarr.json, receipts/NAME.json, kinds of arrays, or folders of these.

    A key is known where the very file is there that the lock file names.

    Raises:
        StoreError: it is not a lock file.
    """
    try:
        # All scalars are read as text: a digest of only digits is not a number.
        read = yaml.load(file.read_bytes(), getattr(yaml, "CBaseLoader", yaml.BaseLoader)) or {}
        stages = read.get("stages") or {} if "outs" not in read else {"": read}
        outs = {out["path"]: out.get("md5") for stage in stages.values() for out in stage.get("outs") or []}
    except (OSError, yaml.YAMLError, UnicodeError, AttributeError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{_shown(file)} is not a readable lock file of DVC ({type(error).__name__}: {reason}); it may refer to any "
            "feature set, so nothing is removed: mend it"
        ) from error
    found: dict[str, Reference] = {}
    for path, md5 in outs.items():
        out = Path(os.path.abspath(file.parent / path))
        if out.name == "zarr.json":
            name, folder, key = out.parent.name, _real(out.parent), _key_with(out, md5)
        elif out.parent.name == RECEIPTS and is_receipt_name(out.name):
            name, folder, key, md5 = out.stem, None, _key_with(out, md5), None
        elif md5 is None or md5.endswith(".dir"):  # a folder with unknown content
            folder = out.parent if out.name in KINDS and out.parent.name != FEATURES else out
            name, folder, key, md5 = folder.name, _real(folder), None, None
        else:
            continue
        before = found.get(name, Reference(name, _shown(file)))
        found[name] = replace(before, key=key or before.key, md5=md5 or before.md5, folder=folder or before.folder)
    return list(found.values())


def md5_of(content: bytes) -> str:
    """As DVC names it."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _key_with(file: Path, md5: str | None) -> str | None:
    """The key in a set's zarr.json or receipt; None if there is no such file with this digest."""
    content = file.read_bytes() if file.is_file() else b""
    return key_in(content) if md5_of(content) == md5 else None


def _of_part(folder: Path) -> Iterator[Reference]:
    """The reference of a stub, or of a copy that lacks arrays: they are read at the root. A stub without a key is refused."""
    try:
        store = FeatureStore.describe(folder)
    except StoreError:
        if is_stub(folder):
            raise
        return  # damaged, but no stub
    if not all((folder / kind_of(name) / "zarr.json").is_file() for name in store.attributes["arrays"]):
        yield Reference(folder.name, _shown(folder / "zarr.json"), store.spec.key)


def _unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # nothing to look at, or gone in the meantime
        raise StoreError(
            f"{error.filename} cannot be searched ({error.strerror}); it may refer to any feature set: get access to it"
        )


def _real(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def _shown(path: Path) -> str:
    """A path relative to the working folder, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
