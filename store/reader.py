"""Reading a feature set: checked on opening, each shard's digest checked when it is first touched."""

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from store.array import ArrayReader, Verify
from store.errors import StoreError
from store.layout import ATTRIBUTE
from store.spec import FORMAT_VERSION, FeatureSpec


class FeatureStore:
    """One feature set on disk: the features of one encoder for one data set.

    A copy may lack whole kinds (`patch`, `cls`, …): pulling only what a probe reads is meant to work. What is there must be
    complete.

    Attributes:
        path: its folder.
        spec: what it holds (FeatureSpec).
        attributes: `encoder` (name), `classes` (names or None), `invalid` (rows recorded as unreadable), `norm_eps`.
        arrays: the arrays whose kind is in this copy, by name, e.g. `patch/block5/view0`.
    """

    def __init__(self, path: Path, spec: FeatureSpec, attributes: Mapping[str, Any], arrays: Mapping[str, ArrayReader]):
        self.path, self.spec, self.attributes, self.arrays = path, spec, attributes, arrays

    @classmethod
    def open(cls, path: str | os.PathLike[str], key: str | None = None, verify: Verify = "first") -> "FeatureStore":
        """Open and check a feature set.

        Args:
            path: its folder.
            key: the key it must have; any by default.
            verify: check a shard's digest when it is first touched ("first") or not at all ("never").

        Raises:
            StoreError: not a feature set, another key or format version, edited metadata, missing or cut shards.
        """
        folder = Path(path)
        spec, attributes = _describe(folder)
        if attributes["key"] != spec.key:
            raise StoreError(
                f"{folder}: its key {attributes['key']} does not belong to its description, which has {spec.key}; "
                "extract it again"
            )
        if key is not None and key != spec.key:
            raise StoreError(
                f"{folder} has key {spec.key}, expected {key}: other weights, transform, blocks or data; "
                "extract it again or name the right folder"
            )
        arrays = {}
        for name, digest in attributes["arrays"].items():
            if (folder / _kind(name)).is_dir():
                file = folder / name / "zarr.json"
                text = file.read_bytes() if file.exists() else b""
                if xxhash.xxh3_128_hexdigest(text) != digest:
                    state = "was changed" if text else "is missing"
                    raise StoreError(f"{file} {state} since the feature set was written; pull or extract it again")
                try:
                    meta = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise StoreError(f"{file} is not JSON ({error!r}); pull or extract it again") from error
                arrays[name] = array = ArrayReader(folder, name, meta, verify)
                if _kind(name) != "norm" and array.shape[0] != spec.n_images:
                    raise StoreError(f"{file} has {array.shape[0]} rows for {spec.n_images} images; extract it again")
        return cls(folder, spec, attributes, arrays)

    def __len__(self) -> int:
        """Number of images."""
        return self.spec.n_images

    def __repr__(self) -> str:
        return (
            f"FeatureStore({str(self.path)!r}, {self.attributes.get('encoder')}, {len(self)} images, {', '.join(self.kinds)})"
        )

    @property
    def kinds(self) -> list[str]:
        """Kinds of arrays that are in this copy: patch, cls, statistics, …"""
        return sorted({_kind(name) for name in self.arrays})

    def array(self, name: str) -> ArrayReader:
        """An array by its full name.

        Raises: StoreError: it was not extracted, or its kind is not in this copy.
        """
        if name in self.arrays:
            return self.arrays[name]
        kind = _kind(name)
        written = [n for n in self.attributes["arrays"] if _kind(n) == kind]
        if name in written:
            raise StoreError(
                f"{self.path / kind} is not in this copy of the feature set; fetch it: dvc pull {self.path / kind}"
            )
        if written:
            raise StoreError(
                f"{self.path} has no array {name!r}; it has: {', '.join(written)}. Extract with that block or view"
            )
        described = {"cls": "[cls] tokens", "patch": "patch tokens"}.get(kind, repr(kind))
        kinds = sorted({_kind(n) for n in self.attributes["arrays"]})
        raise StoreError(
            f"{self.path} has no {described} (it has: {', '.join(kinds)}); "
            "choose an aggregator that reads something else, or extract with an encoder that has them"
        )

    def tokens(self, kind: Literal["patch", "cls", "registers"], block: int | None = None, view: int = 0) -> ArrayReader:
        """Tokens of one block: patch [N, T, D], cls [N, D], registers [N, R, D]. The deepest stored block by default."""
        chosen = self.spec.blocks[-1] if block is None else block
        return self.array(f"{kind}/block{chosen}/view{view}")

    @cached_property
    def labels(self) -> np.ndarray:
        """[N] int64, the class; -1 where an image has none."""
        return self.array("images/label").all()

    @cached_property
    def valid(self) -> np.ndarray:
        """[N] bool: false for images that could not be read and were recorded instead."""
        return self.array("images/valid").all().astype(bool)

    @cached_property
    def ids(self) -> list[str]:
        """The id of each image."""
        return [bytes(row).rstrip(b"\0").decode() for row in self.array("images/id").all()]

    @property
    def n_classes(self) -> int:
        """Number of classes: of the names given at extraction, else the largest label plus one."""
        names = self.attributes.get("classes")
        return len(names) if names else int(self.labels.max()) + 1


def _kind(name: str) -> str:
    return name.split("/")[0]


def _describe(folder: Path) -> tuple[FeatureSpec, dict[str, Any]]:
    """The spec and the attributes in the group's zarr.json."""
    file = folder / "zarr.json"
    if not file.is_file():
        staged = sorted(folder.parent.glob(f".staging/{folder.name}-*"))
        hint = (
            f"an extraction into it is unfinished ({staged[0]}): run it again"
            if staged
            else "name what `beyondcls extract --out` wrote"
        )
        raise StoreError(f"{folder} is not a feature set: it has no zarr.json; {hint}")
    try:
        attributes = json.loads(file.read_text())["attributes"][ATTRIBUTE]
        described, names, _ = attributes["spec"], list(attributes["arrays"].keys()), attributes["key"]
        if (version := described["format_version"]) != FORMAT_VERSION:
            raise StoreError(f"{folder} has format version {version}, this program reads {FORMAT_VERSION}; extract it again")
        spec = FeatureSpec.from_dict(described)
        _ = spec.key, len(attributes.get("classes") or ())  # fail here, not where they are used
    except StoreError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{file} does not describe a feature set ({error!r}); pull or extract it again") from error
    if not all(_inside(name) for name in names):
        raise StoreError(f"{file} names arrays outside its folder; do not use this store")
    return spec, attributes


def _inside(name: str) -> bool:
    return re.fullmatch(r"[\w-]{1,100}(/[\w-]{1,100})*", name, re.ASCII) is not None
