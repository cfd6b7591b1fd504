"""Where feature sets are: here, or at a shared root (`store` in the parameter file, or in the user's configuration)."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer

from pipelines.parameters.configuration import configured
from pipelines.parameters.params import check_names, read_params, section
from store import BeyondClsError, FeatureStore, StoreError
from store.format.unfinished import is_stub
from store.moving.receipt import Receipt, digest_of
from store.places import is_remote, place_at
from store.places.cache import DiskCache

RECEIPTS, FEATURES = "receipts", "features"  # folders next to one another
PROJECT = "project"  # as a root: features/, in spite of the user's configuration


@dataclass(frozen=True)
class Places:
    """`store` in the parameter file, completed by the user's configuration.

    Attributes:
        root: a folder that machines share, or s3://…; sets are ROOT/NAME-KEY. None: they are in features/.
        cache: folder and size limit in bytes of the cache of what was read from an object store. None: nothing is cached.
        source: file that names the root; None if no file does.
    """

    root: str | None = None
    cache: tuple[Path, int] | None = None
    source: Path | None = field(default=None, compare=False)

    @classmethod
    def from_params(cls, params: Path | None) -> "Places":
        """The places that a parameter file names.

        Raises:
            BeyondClsError: an unknown name or an invalid value.
        """
        return cls.from_section({} if params is None else section(read_params(params), "store"), params)

    @classmethod
    def from_section(cls, values: Mapping[str, Any], source: Path | None = None) -> "Places":
        """The places that the section `store` of a parameter file names, or a root on the command line.

        Raises:
            BeyondClsError: an unknown name or an invalid value, there or in the user's configuration.
        """
        root, cache = checked_store(values)
        file, of_user = configured("store")
        user_root, user_cache = checked_store(of_user, file)
        if root is None:
            return cls(user_root, cache or user_cache, None if user_root is None else file)
        return cls(None if root == PROJECT else root, cache or user_cache, source)

    @property
    def shown(self) -> str:
        """The root and the file that names it, for messages."""
        return f"{self.root} (store.root{f' of {self.source}' if self.source else ''})"

    def address(self, name: str, key: str) -> str:
        """Where a set is written at the root; its older versions have other keys, and are not overwritten."""
        assert self.root is not None
        return f"{self.root}/{name}-{key}"

    def find(self, name: str, key: str, check: Callable[[FeatureStore], object]) -> FeatureStore:
        """The set of a key at the root: the one of this name, else one of another name, which another project may have given.

        Args:
            check: raises StoreError for a set that does not fit.

        Raises:
            StoreError: no set fits; tells why the one of this name does not.
        """
        named, problem = self.address(name, key), None
        for address in self._addresses(named, key):
            try:
                store = self.open(address, key)
                check(store)
                return store
            except StoreError as error:
                if problem is None or place_at(named).size("zarr.json") is None:
                    problem = error
        assert problem is not None
        raise problem

    def _addresses(self, named: str, key: str) -> Iterator[str]:
        """Addresses of possible sets of a key. An unfinished one has no zarr.json yet, and is left out."""
        yield named
        root = str(self.root)
        for found_name in place_at(root).names():
            address = f"{root}/{found_name}"
            if found_name.endswith(f"-{key}") and address != named and place_at(address).size("zarr.json") is not None:
                yield address

    def open(self, address: str, key: str | None = None) -> FeatureStore:
        """Open the feature set.

        Raises:
            StoreError: as `FeatureStore.open`.
        """
        options: dict[str, Any] = {}
        if self.cache is not None and is_remote(address):
            options["cache"] = _disk_cache(*self.cache)
        return FeatureStore.open(address, key=key, **options)


def open_features(path: str | os.PathLike[str], params: Path | None = None) -> FeatureStore:
    """The feature set that `--features` names. Local arrays are read locally, others at the root, compared with the receipt.

    Args:
        path: a folder, features/NAME; its receipt, receipts/NAME.json; or an address (s3://…).
        params: parameter file with `store`.

    Raises:
        StoreError: it is not available, or not what the receipt describes; says what was searched for.
    """
    places, text = Places.from_params(params), os.fspath(path)
    if is_remote(text):
        return places.open(text)
    folder, file = set_and_receipt(text)
    by_receipt, stub = text.endswith(".json"), is_stub(folder)
    local = FeatureStore.open(folder) if (folder / "zarr.json").is_file() and not stub else None
    if local is not None and not by_receipt and (_is_whole(local) or places.root is None):
        return local
    receipt = Receipt.read(file) if by_receipt or file.is_file() else None
    described = FeatureStore.describe(folder) if local is None and (stub or receipt is None) else local
    if described is not None and receipt is not None and digest_of(described) != receipt.digest:
        if not by_receipt:
            raise StoreError(
                f"{folder} is of the feature set {described.spec.key}, {file} of another ({receipt.key}); get both from "
                "one commit with git and `dvc checkout`, or extract again"
            )
        local = described = None
    if local is not None and (_is_whole(local) or places.root is None):
        return local
    key = receipt.key if receipt is not None else described.spec.key if described is not None else ""
    if places.root is None:
        raise StoreError(
            f"{text} names a feature set (key {key}) whose arrays are not in {folder}, and no store.root was given, where they "
            f"could be; fetch them with `dvc pull {folder}`, or set store.root in the parameter file and give --params"
        )
    try:
        shared = places.find(folder.name, key, lambda store: _check_set(store, receipt, described))
    except StoreError as error:
        if local is not None:
            typer.echo(f"note: {error}; what is in {folder} is used alone", err=True)
            return local
        raise StoreError(
            f"{text} names a feature set whose arrays are not in {folder}, and at {places.shown} it cannot be "
            f"used: {error}. Fetch it with `dvc pull {folder}` if DVC has it, or set store.root to where it is"
        ) from error
    if local is None:
        return shared
    local.arrays.update((name, array) for name, array in shared.arrays.items() if name not in local.arrays)
    return local


def _check_set(store: FeatureStore, receipt: Receipt | None, described: FeatureStore | None) -> None:
    """Refuse a set that is not the one that receipt and stub describe."""
    (receipt or Receipt.from_store(store)).check(store, whole=True)
    if described is not None and digest_of(described) != digest_of(store):
        raise StoreError(f"{store.where} has the key of {described.where}, but another zarr.json; extract it again")


def _is_whole(store: FeatureStore) -> bool:
    return len(store.arrays) == len(store.attributes["arrays"])


def set_and_receipt(text: str) -> tuple[Path, Path]:
    """Folder and receipt of a feature set, from either path or from NAME alone: features/NAME and receipts/NAME.json."""
    path = Path(text.removeprefix("file://"))
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))
    if path.suffix == ".json":
        return Path(os.path.normpath(path.parent / ".." / FEATURES / path.stem)), path
    return path, receipt_of(path)


def receipt_of(folder: Path) -> Path:
    """The conventional place of a feature set's receipt: receipts/NAME.json next to the folder that holds NAME."""
    return Path(os.path.normpath(folder.parent / ".." / RECEIPTS / f"{folder.name}.json"))


def _normalise_root(root: str) -> str:
    return root.rstrip("/") if is_remote(root) else os.path.expanduser(root.removeprefix("file://")).rstrip("/")


def checked_store(values: Mapping[str, Any], file: Path | None = None) -> tuple[str | None, tuple[Path, int] | None]:
    """Root and cache that a section `store` names: of a parameter file, or of the user's configuration.

    Args:
        file: the user's configuration, where folders must not be relative.

    Raises:
        BeyondClsError: a name or a value that means nothing.
    """
    place = "" if file is None else f" in {file}"
    check_names("store" if file is None else f"store of {file}", values, ["root", "cache"])
    root, cache = values.get("root"), values.get("cache")
    is_text = isinstance(root, str) and root.strip("/")
    if root is not None and not (is_text and (file is None or is_remote(root) or os.path.isabs(_normalise_root(root)))):
        expected = f"a folder or an address, e.g. s3://bucket/features, or {PROJECT}: features/ here, whatever you configured"
        if file is not None:
            expected = "an absolute folder or an address, e.g. /scratch/features or s3://bucket/features"
        raise BeyondClsError(f"store.root{place} is {root!r}, expected {expected}; correct it, or remove the line")
    if cache is None:
        return root and _normalise_root(root), None
    if not isinstance(cache, Mapping):
        raise BeyondClsError(f"store.cache{place} is {cache!r}, expected a folder and gb, e.g. .cache/features and 50")
    check_names(f"store.cache{place}", cache, ["folder", "gb"])
    folder, gb = cache.get("folder"), cache.get("gb")
    if not isinstance(folder, str) or not folder or (file is not None and not os.path.isabs(os.path.expanduser(folder))):
        expected = "a folder, e.g. .cache/features" if file is None else "an absolute folder, e.g. /scratch/cache"
        raise BeyondClsError(f"store.cache.folder{place} is {folder!r}, expected {expected}")
    if isinstance(gb, bool) or not isinstance(gb, int | float) or not 0 < gb < float("inf"):
        raise BeyondClsError(f"store.cache.gb{place} is {gb!r}, expected how many gigabytes it may have, e.g. 50")
    return root and _normalise_root(root), (Path(os.path.expanduser(folder)).absolute(), int(gb * 1e9))


@cache
def _disk_cache(folder: Path, nbytes: int) -> DiskCache:
    """The one cache for all sets that a process opens: they share its size limit."""
    return DiskCache(folder, nbytes)
