"""The description that goes with exported arrays, and the checks of one that is imported."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from store.errors import StoreError
from store.format.array import ArrayReader
from store.format.layout import ATTRIBUTE, GROUP, SCALE, ArrayLayout, flat_layout, groups_of, json_bytes
from store.format.reader import FeatureStore
from store.places.place import Place, ShardFile

VERSION = 1  # of the description
WRITTEN = ("key", "spec", "invalid", "arrays", "digest")  # attributes of the group that the writer sets itself


def header_of(form: str, store: FeatureStore) -> dict[str, Any]:
    """The description without its arrays: version, form, and the attributes of the group as they are in its zarr.json."""
    return {"exchange": VERSION, "form": form, "group": dict(store.attributes)}


def entry_of(array: ArrayReader) -> dict[str, Any]:
    """What an array's zarr.json says about it."""
    layout = array.layout
    return {
        "shape": list(layout.shape),
        "dtype": layout.dtype,
        "codec": layout.codec,
        "dimension_names": list(layout.dimensions),
        "shard_rows": layout.shard_rows,
        "chunk_rows": layout.chunk_rows,
        "shards": array.shards,
    }


def description_of(form: str, store: FeatureStore, names: Sequence[str]) -> dict[str, Any]:
    """The whole description of an export, as JSON values."""
    return header_of(form, store) | {"arrays": {name: entry_of(store.arrays[name]) for name in names}}


def load_json(source: str, text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        StoreError: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{source} is not JSON ({error}); export the feature set again") from error


def described_store(source: str, form: str, description: Any) -> FeatureStore:
    """The feature set that a description promises: its arrays have layouts and digests of their shards, but no shards.

    The group's and the arrays' zarr.json are made anew and checked as those of a store are: a description that was changed
    does not have the digests that it records.

    Raises:
        StoreError: fields are missing or have wrong types, it was changed, or the export left out arrays.
    """
    try:
        if (version := description["exchange"]) != VERSION:
            raise StoreError(f"it has version {version!r}, this program reads {VERSION}")
        if description["form"] != form:
            raise StoreError(f"it is of the form {description['form']!r}, read as {form}")
        group, entries = description["group"], description["arrays"]
        _check_types(group, entries)
        documents = {f"{name}/zarr.json": _zarr_of(name, entry) for name, entry in entries.items()}
        documents["zarr.json"] = json_bytes({"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: group}})
        documents |= {f"{name}/zarr.json": GROUP for name in groups_of(list(entries))}
        store = FeatureStore.describe(_DescriptionOnly(documents))
        if missing := [name for name in group["arrays"] if name not in entries]:
            raise StoreError(
                f"it lacks {len(missing)} of its {len(group['arrays'])} arrays ({', '.join(missing[:5])}"
                f"{', …' if len(missing) > 5 else ''}); only what is exported without --arrays can be imported"
            )
        for name in group["arrays"]:
            store.add(name)
        _check_arrays(store)
    except StoreError as error:
        raise StoreError(f"{source} does not describe a whole feature set: {error}; export it again") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"{source} does not describe an exported feature set ({error!r}); name what `beyondcls store export` wrote"
        ) from error
    return store


def _zarr_of(name: str, entry: Mapping[str, Any]) -> bytes:
    dimensions = tuple(entry["dimension_names"])
    layout = ArrayLayout(
        name, tuple(entry["shape"]), entry["dtype"], dimensions, entry["shard_rows"], entry["chunk_rows"], entry["codec"]
    )
    return layout.to_zarr({"shards": entry["shards"]})


def _check_types(group: Any, entries: Any) -> None:
    """Refuse values of types that no extraction writes.

    Raises:
        StoreError: values that the writer would accept have other types than extraction gives them.
    """
    spec = group["spec"]
    texts = ("weights", "architecture", "data", "point", "dtype", "compute_dtype")
    as_expected = {
        "encoder": isinstance(group["encoder"], str),
        "classes": group["classes"] is None or _texts(group["classes"]),
        "norm_eps": group["norm_eps"] is None or type(group["norm_eps"]) in (int, float),
        "encoder_flops": group.get("encoder_flops") is None or type(group["encoder_flops"]) is int,
        "problems": _texts(group["problems"]),
        "invalid": _notes(group["invalid"], spec["n_images"]),
        "arrays": isinstance(group["arrays"], dict) and _texts(list(group["arrays"].values())),
        **{f"spec.{name}": isinstance(spec[name], str) for name in texts},
        **{f"spec.{name}": type(spec[name]) is int and spec[name] > 0 for name in ("n_images", "n_views")},
        **{f"spec.{name}": _texts(spec.get(name, [])) for name in ("statistics", "maps", "vectors")},
        "spec.drop_path": type(spec.get("drop_path", 0.0)) is float and 0 <= spec.get("drop_path", 0.0) < 1,
        "spec.blocks": isinstance(spec["blocks"], list) and all(type(block) is int for block in spec["blocks"]),
        "spec.transform": isinstance(spec["transform"], dict),
    }
    for name, entry in entries.items():
        as_expected[name] = (
            isinstance(entry["dtype"], str) and isinstance(entry["codec"], str | None) and _texts(entry["dimension_names"])
        )
        as_expected[name] &= isinstance(entry["shape"], list) and all(
            type(n) is int and n > 0 for n in (*entry["shape"], entry["shard_rows"], entry["chunk_rows"])
        )
    if wrong := [name for name, holds in as_expected.items() if not holds]:
        raise StoreError(f"it has values of a wrong type or range in {', '.join(wrong)}")


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _notes(notes: Any, n_images: Any) -> bool:
    """Whether these are notes on invalid rows, in their order."""
    rows = [note["row"] for note in notes]
    fields = all(set(note) == {"row", "id", "problem"} and _texts([note["id"], note["problem"]]) for note in notes)
    ascending = all(row < following for row, following in zip([-1, *rows], [*rows, n_images], strict=True))
    return fields and all(type(row) is int for row in rows) and ascending


def _check_arrays(store: FeatureStore) -> None:
    """Refuse arrays that do not fit each other.

    Raises:
        StoreError: arrays do not fit each other as those that are written together do.
    """
    layouts = {name: array.layout for name, array in store.arrays.items()}
    if len({(a.shape[0], a.shard_rows) for a in layouts.values() if a.has_image_axis}) != 1:
        raise StoreError("it has arrays with an image axis whose shards differ in rows, or has none")
    for name, layout in layouts.items():
        if not layout.has_image_axis and layout != flat_layout(name, layout.shape, layout.dtype):
            raise StoreError(f"it has {name} in other chunks or shards, or with other axes than arrays of its name have")
        scale = layouts.get(name + SCALE)
        if store.arrays[name].scale_shape != (scale and (scale.shape, scale.dtype)):
            raise StoreError(f"it has {name} with scales that are missing or do not fit it")


class _DescriptionOnly(Place):
    """A place that has only the zarr.json files of a feature set."""

    def __init__(self, documents: Mapping[str, bytes]):
        self._documents = documents

    def address(self, name: str = "") -> str:
        return f"its {name}" if name else "it"

    def content(self, name: str) -> bytes | None:
        return self._documents.get(name)

    def size(self, name: str) -> int | None:
        return None

    def has_folder(self, name: str) -> bool:
        return any(document.startswith(f"{name}/") for document in self._documents)

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        raise StoreError(f"{self.address(name)} is only described; import it first")


DESCRIPTION = "description.json"


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write a folder's description.json."""
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def read_description(folder: Path) -> Any:
    """The description in a folder.

    Raises:
        StoreError: it is missing or cannot be read.
    """
    file = folder / DESCRIPTION
    try:
        return load_json(str(file), file.read_bytes())
    except OSError as error:
        raise StoreError(
            f"{file} cannot be read ({error.strerror}); name the folder that `beyondcls store export` wrote"
        ) from error
