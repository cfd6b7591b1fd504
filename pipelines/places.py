"""Where feature sets are: here, or at a root that is shared (`store` in the parameter file, or in the user's configuration)."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer

from pipelines.configuration import configured
from pipelines.params import check_names, mapping, read_params, section
from store import BeyondClsError, FeatureStore, StoreError
from store.format.stub import is_stub
from store.moving.receipt import Receipt, digest_of
from store.places import is_remote, place_at
from store.places.cache import DiskCache

RECEIPTS, FEATURES = "receipts", "features"  # folders beside one another
PROJECT = "project"  # as a root: features/, whatever the user's configuration says


@dataclass(frozen=True)
class Places:
    """`store` in the parameter file; what it leaves open, the user's configuration says.

    Attributes:
        root: a folder that machines share, or s3://…; sets are ROOT/NAME-KEY. None: they lie in features/.
        cache: folder, and how many bytes it may have, for what was read from an object store. None: none is kept.
        source: file that says so of the root; None if none does.
    """

    root: str | None = None
    cache: tuple[Path, int] | None = None
    source: Path | None = field(default=None, compare=False)

    @classmethod
    def of(cls, params: Path | None) -> "Places":
        """The places that a parameter file names.

        Raises:
            BeyondClsError: a name or a value that means nothing.
        """
        return cls.from_section({} if params is None else section(read_params(params), "store"), params)

    @classmethod
    def from_section(cls, values: Mapping[str, Any], source: Path | None) -> "Places":
        """Of the section `store` of a parameter file.

        Raises:
            BeyondClsError: a name or a value that means nothing, here or in the user's configuration.
        """
        root, cache = of_project(values)
        user = of_user()
        if root is None:
            return cls(user.root, cache or user.cache, user.source)
        return cls(None if root == PROJECT else root, cache or user.cache, source)

    @classmethod
    def at(cls, root: str) -> "Places":
        """Of a root that was given on the command line.

        Raises:
            BeyondClsError: it is none.
        """
        return cls.from_section({"root": root}, None)

    @property
    def shown(self) -> str:
        """The root and where it stands, for messages."""
        return f"{self.root} (store.root{f' of {self.source}' if self.source else ''})"

    def address(self, name: str, key: str) -> str:
        """Where a set is written at the root; old versions of it have other keys, and stay where they are."""
        assert self.root is not None
        return f"{self.root}/{name}-{key}"

    def find(self, name: str, key: str, check: Callable[[FeatureStore], object]) -> FeatureStore:
        """The set of a key at the root: the one of this name, else one of any other, which another project may have given it.

        Args:
            check: raises StoreError for a set that will not do.

        Raises:
            StoreError: none will do, and why this one does not.
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
        """Of what may be the set of a key. One that is not finished has no zarr.json yet, and is none."""
        yield named
        root = str(self.root)
        for other in place_at(root).names():
            address = f"{root}/{other}"
            if other.endswith(f"-{key}") and address != named and place_at(address).size("zarr.json") is not None:
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
    """What `--features` means. Arrays that are here are read here, others at the root, held against the receipt.

    Args:
        path: a folder, features/NAME; its receipt, receipts/NAME.json; or an address (s3://…).
        params: parameter file with `store`.

    Raises:
        StoreError: nothing is to be had, or it is not what the receipt says; says what was looked for.
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
        there = places.find(folder.name, key, lambda store: _check(store, receipt, described))
    except StoreError as error:
        if here is not None:
            typer.echo(f"note: {error}; what is in {folder} is used alone", err=True)
            return here
        raise StoreError(
            f"{text} names a feature set whose arrays are not in {folder}, and at {places.shown} it cannot be "
            f"used: {error}. Fetch it with `dvc pull {folder}` if DVC has it, or set store.root to where it is"
        ) from error
    if here is None:
        return there
    here.arrays.update((name, array) for name, array in there.arrays.items() if name not in here.arrays)
    return here


def _check(store: FeatureStore, receipt: Receipt | None, described: FeatureStore | None) -> None:
    """Refuse a set that is not the one that the receipt names.

    Raises:
        StoreError: what is at the root is not what the receipt and the stub say.
    """
    (receipt or Receipt.from_store(store)).check(store, whole=True)
    if described is not None and digest_of(described) != digest_of(store):
        raise StoreError(f"{store.where} has the key of {described.where}, but another zarr.json; extract it again")


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


def of_project(values: Mapping[str, Any]) -> tuple[str | None, tuple[Path, int] | None]:
    """Root and cache that the section `store` of a parameter file names.

    Raises:
        BeyondClsError: a name or a value that means nothing.
    """
    check_names("store", values, ["root", "cache"])
    root, kept = values.get("root"), values.get("cache")
    if root is not None and (not isinstance(root, str) or not root.strip("/")):
        raise BeyondClsError(
            f"store.root is {root!r}, expected a folder or an address, e.g. s3://bucket/features, {PROJECT} (features/ here, "
            "whatever your own configuration says), or null"
        )
    return root and _tidy(root), None if kept is None else _cache_of(mapping("store.cache", kept))


def of_user() -> Places:
    """What the user's configuration says, for all projects.

    Raises:
        BeyondClsError: a name or a value that means nothing.
    """
    file, values = configured("store")
    check_names(f"store of {file}", values, ["root", "cache"])
    root, kept = values.get("root"), values.get("cache")
    if root is not None:
        if not isinstance(root, str) or not (is_remote(root) or os.path.isabs(_tidy(root))):
            raise BeyondClsError(
                f"store.root in {file} is {root!r}, expected an absolute folder or an address, e.g. /scratch/features or "
                "s3://bucket/features; correct it, or remove the line"
            )
        root = _tidy(root)
    if kept is not None:
        if not isinstance(kept, dict):
            raise BeyondClsError(f'store.cache in {file} is {kept!r}, expected {{ folder = "/scratch/cache", gb = 50 }}')
        kept = _cache_of(kept, f" in {file}")
    return Places(root, kept, None if root is None else file)


def _cache_of(values: Mapping[str, Any], of_user: str = "") -> tuple[Path, int]:
    """`of_user`: where the values stand, if that is no project, whose folders may be relative."""
    check_names(f"store.cache{of_user}", values, ["folder", "gb"])
    folder, gb = values.get("folder"), values.get("gb")
    if not isinstance(folder, str) or not folder or (of_user and not os.path.isabs(os.path.expanduser(folder))):
        expected = "an absolute folder, e.g. /scratch/cache" if of_user else "a folder, e.g. .cache/features"
        raise BeyondClsError(f"store.cache.folder{of_user} is {folder!r}, expected {expected}")
    if isinstance(gb, bool) or not isinstance(gb, int | float) or not 0 < gb < float("inf"):
        raise BeyondClsError(f"store.cache.gb{of_user} is {gb!r}, expected how many gigabytes it may have, e.g. 50")
    return Path(os.path.expanduser(folder)).absolute(), int(gb * 1e9)


@cache
def _disk_cache(folder: Path, nbytes: int) -> DiskCache:
    """One for all sets that a process opens: they share its bytes."""
    return DiskCache(folder, nbytes)
