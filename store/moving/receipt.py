"""A receipt: what identifies a feature set and each of its shards, small enough for git, wherever the set itself is."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import xxhash

from store.errors import StoreError, other_version
from store.format.array import ArrayReader
from store.format.layout import SAFE_NAME
from store.format.reader import FeatureStore
from store.format.spec import FORMAT_VERSION
from store.places.disk import write_file

DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
DIGESTS = ("key", "digest", "xxh3_128")  # fields that hold one
# Suffix of the file next to a receipt that records what a sample of the set was compared with.
CHECK = ".check.json"


@dataclass(frozen=True)
class ShardReceipt:
    """One shard file: its bytes, and the XXH3-128 of its tail, which vouches for every row."""

    nbytes: int
    xxh3_128: str


@dataclass(frozen=True)
class ArrayReceipt:
    """One array: its shape as stored, its codec (or dtype, where it has none), the bytes of its shard files, and those."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    shards: tuple[ShardReceipt, ...]

    @classmethod
    def from_array(cls, array: ArrayReader) -> "ArrayReceipt":
        shards = tuple(ShardReceipt(shard["nbytes"], shard["xxh3_128"]) for shard in array.shards)
        layout = array.layout
        return cls(layout.shape, layout.codec or layout.dtype, sum(shard.nbytes for shard in shards), shards)


@dataclass(frozen=True)
class Receipt:
    """What a feature set must be. Holds no path, host or time: the same set has the same receipt, to the byte, anywhere.

    Attributes:
        key: of the set.
        encoder: its name, for people.
        digest: XXH3-128 of the group's zarr.json.
        arrays: all of them, by name.
    """

    key: str
    encoder: str
    n_images: int
    digest: str
    arrays: Mapping[str, ArrayReceipt]
    format_version: int = FORMAT_VERSION

    @classmethod
    def from_store(cls, store: FeatureStore) -> "Receipt":
        """The receipt of an opened set, of which this copy lacks nothing; no shard is read."""
        _check_whole(store)
        arrays = {name: ArrayReceipt.from_array(store.arrays[name]) for name in sorted(store.arrays)}
        return cls(store.spec.key, str(store.attributes["encoder"]), len(store), digest_of(store), arrays)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def to_json(self) -> bytes:
        """Canonical: keys sorted, no spaces, a line feed."""
        return (json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n").encode()

    def write(self, path: Path) -> None:
        write_file(Path(path), [self.to_json()])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Receipt":
        """The receipt in a file.

        Raises:
            StoreError: there is no such file, or it is not a receipt of this format.
        """
        try:
            content = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise StoreError(f"there is no receipt {path} ({error.strerror}); `dvc pull {path}`, or extract again") from error
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path} is not JSON ({error}); get it again, or extract again") from error
        version = content.get("format_version") if isinstance(content, dict) else None
        if type(version) is int and version != FORMAT_VERSION:
            raise StoreError(other_version(path, version, FORMAT_VERSION, "extract again"))
        try:
            receipt: Receipt = _as_type(cls, content, "")
            for name, array in receipt.arrays.items():
                if array.nbytes != (total := sum(shard.nbytes for shard in array.shards)):
                    raise ValueError(f"nbytes of {name} is {array.nbytes}, its shards have {total}")
            return receipt
        except ValueError as error:
            raise StoreError(f"{path} is no receipt of a feature set ({error}); get it again, or extract again") from error

    def check(self, store: FeatureStore, whole: bool = False) -> None:
        """Make sure that an opened set is the one of this receipt, by what was listed when it was opened; no shard is read.

        Args:
            whole: all of its arrays must be present; else only those that are present are checked.

        Raises:
            StoreError: another set, or an array or a shard that is missing, cut or different.
        """
        where, remedy = store.where, "extract it again, fetch it with `beyondcls store pull`, or name another root"
        if store.spec.key != self.key:
            raise StoreError(f"{where} has key {store.spec.key}, its receipt {self.key}: it is another feature set; {remedy}")
        if digest_of(store) != self.digest:
            raise StoreError(
                f"{where} has the key of its receipt, but a different zarr.json: the features were computed again, "
                f"elsewhere or in other shards; {remedy}, or take the receipt that belongs to it"
            )
        if whole:
            _check_whole(store)
        for name, array in store.arrays.items():
            if name not in self.arrays:
                raise StoreError(f"{store.place.address(name)} is not in the receipt; {remedy}")
            ours, theirs, at = self.arrays[name], ArrayReceipt.from_array(array), store.place.address(name)
            said, found = (f"{list(one.shape)} {one.dtype} in {len(one.shards)} shards" for one in (ours, theirs))
            if said != found:
                raise StoreError(f"{at} is {found}, its receipt says {said}; {remedy}")
            for shard, (expected, actual) in enumerate(zip(ours.shards, theirs.shards, strict=True)):
                file = store.place.address(array.layout.file(shard))
                if expected != actual:
                    raise StoreError(f"{file} is not the shard of the receipt: another digest or size; {remedy}")
                if (size := store.place.size(array.layout.file(shard))) != expected.nbytes:
                    state = "is missing" if size is None else f"has {size:,} bytes, its receipt says {expected.nbytes:,}"
                    raise StoreError(f"{file} {state}; {remedy}")


def is_receipt_name(name: str) -> bool:
    """Whether a file in a folder of receipts is a receipt, by its name, and not a file written next to one."""
    return name.endswith(".json") and not name.endswith(CHECK)


def digest_of(store: FeatureStore) -> str:
    """XXH3-128 of the group's zarr.json, which vouches for all the rest."""
    return xxhash.xxh3_128_hexdigest(store.place.content("zarr.json") or b"")


def _check_whole(store: FeatureStore) -> None:
    if missing := [name for name in store.attributes["arrays"] if name not in store.arrays]:
        raise StoreError(
            f"{store.place.address(missing[0])} is missing ({len(missing)} of {len(store.attributes['arrays'])} arrays are): "
            "the whole feature set is needed here; extract it again, or name another root"
        )


def _as_type(kind: Any, value: Any, name: str) -> Any:
    """A value of a file as a field of this type and name holds it.

    Raises:
        ValueError: the value is of another type.
    """
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{type(value).__name__} where an object is expected")
        types = {field.name: field.type for field in fields(kind)}
        if set(value) != set(types):
            raise ValueError(f"missing {sorted(set(types) - set(value))}, unknown {sorted(set(value) - set(types))}")
        return kind(**{field: _as_type(of_field, value[field], field) for field, of_field in types.items()})  # type: ignore[operator]
    plain = {tuple: list, Mapping: dict}.get(get_origin(kind), kind)
    if type(value) is not plain or (plain is int and value < 0):
        raise ValueError(f"{name} is {str(value)[:100]!r}, expected {plain.__name__}")
    if name in DIGESTS and not DIGEST.fullmatch(value):
        raise ValueError(f"{name} is {value[:100]!r}, expected 32 hexadecimal digits")
    if plain is list:
        return tuple(_as_type(get_args(kind)[0], one, name) for one in value)
    if plain is dict:
        if strange := [one for one in value if not SAFE_NAME.fullmatch(one)]:
            raise ValueError(f"{strange[0][:100]!r} is not the name of an array")
        return {one: _as_type(get_args(kind)[1], entry, one) for one, entry in value.items()}
    return value
