"""Where feature sets are: here, or at the root that machines share (`store` in the parameter file)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from pipelines.params import check_names, mapping, read_params, section
from store import BeyondClsError, FeatureStore, StoreError
from store.cache import DiskCache
from store.copies import is_remote
from store.receipt import Receipt, digest_of
from store.stub import is_stub

RECEIPTS, FEATURES = "receipts", "features"  # folders beside one another


@dataclass(frozen=True)
class Places:
    """`store` in the parameter file.

    Attributes:
        root: a folder that machines share, or s3://…; sets are ROOT/NAME-KEY. None: they lie in features/.
        cache: folder, and how many bytes it may have, for what was read from an object store. None: none is kept.
    """

    root: str | None = None
    cache: tuple[Path, int] | None = None

    @classmethod
    def of(cls, params: Path | None) -> "Places":
        """Raises: BeyondClsError: a name or a value that means nothing."""
        values = {} if params is None else section(read_params(params), "store")
        check_names("store", values, ["root", "cache"])
        root, kept = values.get("root"), values.get("cache")
        if root is not None and (not isinstance(root, str) or not root.strip("/")):
            raise BeyondClsError(f"store.root is {root!r}, expected a folder or an address, e.g. s3://bucket/features, or null")
        return cls(root and _tidy(root), None if kept is None else _cache_of(mapping("store.cache", kept)))

    def address(self, name: str, key: str) -> str:
        """Of a set at the root; old versions of it have other keys, and stay where they are."""
        assert self.root is not None
        return f"{self.root}/{name}-{key}"

    def open(self, address: str, key: str | None = None) -> FeatureStore:
        """Raises: StoreError: as `FeatureStore.open`."""
        options: dict[str, Any] = {}
        if self.cache is not None and is_remote(address):
            options["cache"] = _disk_cache(*self.cache)
        return FeatureStore.open(address, key=key, **options)


def open_features(path: str | os.PathLike[str], params: Path | None = None) -> FeatureStore:
    """What `--features` means. Arrays that are here are read here, others at the root, held against the receipt.

    Args:
        path: a folder, features/NAME; its receipt, receipts/NAME.json; or an address (s3://…).
        params: parameter file with `store`.

    Raises: StoreError: nothing is to be had, or it is not what the receipt says; says what was looked for.
    """
    places, text = Places.of(params), os.fspath(path)
    if is_remote(text):
        return places.open(text)
    folder, file = named(text)
    by_receipt, stub = text.endswith(".json"), is_stub(folder)
    here = FeatureStore.open(folder) if (folder / "zarr.json").is_file() and not stub else None
    if here is not None and not by_receipt and (_is_whole(here) or places.root is None):
        return here
    receipt = Receipt.read(file) if by_receipt or file.is_file() else None
    described = FeatureStore.describe(folder) if here is None and (stub or receipt is None) else here
    if described is not None and receipt is not None and digest_of(described) != receipt.digest:
        if not by_receipt:
            raise StoreError(
                f"{folder} is of the feature set {described.spec.key}, {file} of another ({receipt.key}); get both from "
                "one commit with git and `dvc checkout`, or extract again"
            )
        here = described = None
    if here is not None and (_is_whole(here) or places.root is None):
        return here
    key = receipt.key if receipt is not None else described.spec.key if described is not None else ""
    if places.root is None:
        raise StoreError(
            f"{text} names a feature set (key {key}) whose arrays are not in {folder}, and no store.root was given, where they "
            f"could be; fetch them with `dvc pull {folder}`, or set store.root in the parameter file and give --params"
        )
    try:
        there = places.open(places.address(folder.name, key), key)
        (receipt or Receipt.of(there)).check(there, whole=True)
        if described is not None and digest_of(described) != digest_of(there):
            raise StoreError(f"{there.where} has the key of {folder}, but another zarr.json; extract it again")
    except StoreError as error:
        if here is not None:
            typer.echo(f"note: {error}; what is in {folder} is used alone", err=True)
            return here
        raise StoreError(
            f"{text} names a feature set whose arrays are not in {folder}, and at store.root ({places.root}) it cannot be "
            f"used: {error}. Fetch it with `dvc pull {folder}` if DVC has it, or set store.root to where it is"
        ) from error
    if here is None:
        return there
    here.arrays.update((name, array) for name, array in there.arrays.items() if name not in here.arrays)
    return here


def _is_whole(store: FeatureStore) -> bool:
    return len(store.arrays) == len(store.attributes["arrays"])


def named(text: str) -> tuple[Path, Path]:
    """Folder and receipt of a feature set that either is named by, or NAME alone: features/NAME and receipts/NAME.json."""
    path = Path(text.removeprefix("file://"))
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))
    if path.suffix == ".json":
        return Path(os.path.normpath(path.parent / ".." / FEATURES / path.stem)), path
    return path, receipt_of(path)


def receipt_of(folder: Path) -> Path:
    """Where the receipt of a feature set is by convention: receipts/NAME.json beside the folder that holds NAME."""
    return Path(os.path.normpath(folder.parent / ".." / RECEIPTS / f"{folder.name}.json"))


def _tidy(root: str) -> str:
    return root.rstrip("/") if is_remote(root) else os.path.expanduser(root.removeprefix("file://")).rstrip("/")


def _cache_of(values: Mapping[str, Any]) -> tuple[Path, int]:
    check_names("store.cache", values, ["folder", "gb"])
    folder, gb = values.get("folder"), values.get("gb")
    if not isinstance(folder, str) or not folder:
        raise BeyondClsError(f"store.cache.folder is {folder!r}, expected a folder, e.g. .cache/features")
    if isinstance(gb, bool) or not isinstance(gb, int | float) or not 0 < gb < float("inf"):
        raise BeyondClsError(f"store.cache.gb is {gb!r}, expected how many gigabytes it may have, e.g. 50")
    return Path(folder).absolute(), int(gb * 1e9)


@cache
def _disk_cache(folder: Path, nbytes: int) -> DiskCache:
    """One for all sets that a process opens: they share its bytes."""
    return DiskCache(folder, nbytes)
