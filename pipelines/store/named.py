"""What names feature sets: dvc.lock, receipts, stubs and copies that lack arrays, of the projects that are given."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pipelines.sharing.places import FEATURES, RECEIPTS
from pipelines.store.find import AT_ROOT
from store import FeatureStore, StoreError
from store.format.layout import kind_of
from store.format.spec import key_in
from store.format.unfinished import is_stub
from store.moving.receipt import Receipt, is_receipt_name
from store.places import is_remote

LOCK = "dvc.lock"
ProjectOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--project", help="folder of another project, or a lock file (git show BRANCH:dvc.lock > FILE), that names sets, too"
    ),
]


def named_in(places: Iterable[Path], only_locks: bool = False) -> dict[str, str]:
    """What projects (dvc.lock, receipts/*.json, features/*), or single lock files, name, and which file does: a set's key, the
    MD5 of its zarr.json, its folder, or where nothing tells its content its NAME.

    Raises:
        StoreError: there is no such place, or a file that may name any set cannot be read.
    """
    named: dict[str, str] = {}
    for place in (Path(os.path.abspath(place)) for place in places):
        if not place.exists():
            raise StoreError(f"there is no {place}; name the folder of a project, or a lock file")
        file = place if place.is_file() else place / LOCK
        named |= dict.fromkeys(_keys_in_lock(file) if file.is_file() else (), os.path.relpath(file))
        if place.is_dir() and not only_locks:
            receipts = (file for file in _entries(place / RECEIPTS) if is_receipt_name(file.name))
            named |= {Receipt.read(file).key: os.path.relpath(file) for file in receipts}
            for folder in _entries(place / FEATURES):
                named |= dict.fromkeys(_keys_in_features(folder), os.path.relpath(folder / "zarr.json"))
    return named


def naming(address: str, content: bytes | None, named: Mapping[str, str]) -> str:
    """The file that names a set, by its address, its key and the content of its zarr.json; empty if none does."""
    at_root = AT_ROOT.fullmatch(name := address.rpartition("/")[2])
    digest = hashlib.md5(content or b"", usedforsecurity=False).hexdigest()
    folder = "" if is_remote(address) else os.path.realpath(address)
    # An output that is the whole of features/ or receipts/ may hold any set.
    tokens = (key_in(content or b""), digest, folder, *(at_root.groups() if at_root else [name]), FEATURES, RECEIPTS)
    return next((named[token] for token in tokens if token in named), "")


def _keys_in_lock(file: Path) -> Iterator[str]:
    """What the outputs of a lock file name: NAME/zarr.json, receipts/NAME.json, or a folder of unknown content."""
    try:
        # All scalars are read as text: a digest of only digits is not a number.
        read = yaml.load(file.read_bytes(), getattr(yaml, "CBaseLoader", yaml.BaseLoader)) or {}
        stages = read.get("stages") or {} if "outs" not in read else {"": read}
        outs = {Path(out["path"]): out.get("md5") for stage in stages.values() for out in stage.get("outs") or []}
    except (OSError, yaml.YAMLError, UnicodeError, AttributeError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{os.path.relpath(file)} is not a readable lock file of DVC ({type(error).__name__}: {reason}); it may name any "
            "feature set, so nothing is removed: mend it"
        ) from error
    digests = {path.parent: md5 for path, md5 in outs.items() if path.name == "zarr.json" and md5}
    names = {path.stem for path in outs if path.parent.name == RECEIPTS and is_receipt_name(path.name)}
    folders = [path for path, md5 in outs.items() if md5 is None or md5.endswith(".dir")]
    yield from digests.values()
    yield from (os.path.realpath(file.parent / folder) for folder in (*digests, *folders))
    yield from (names | {folder.name for folder in folders}) - {folder.name for folder in digests}


def _keys_in_features(folder: Path) -> Iterator[str]:
    """The key of a stub, or of a copy that lacks arrays: they are read at the root. A stub without a key is refused."""
    try:
        store = FeatureStore.describe(folder)
        if not all((folder / kind_of(name) / "zarr.json").is_file() for name in store.attributes["arrays"]):
            yield store.spec.key
    except StoreError:
        if is_stub(folder):
            raise


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
