"""What a form of exchange is: how a feature set leaves the store, how it is described there, and how it is imported again."""

import contextlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xxhash

from store.errors import StoreError
from store.format.layout import ATTRIBUTE, GROUP, SCALE, ArrayLayout, flat_layout, groups_of, json_bytes
from store.format.reader import FeatureStore
from store.places.disk import is_abandoned, partial_name, partials_of, place_file, sync_folder
from store.places.place import Place, ShardFile
from store.writing.writer import FeatureWriter

Progress = Callable[[int], None]
DESCRIPTION = "description.json"
VERSION = 1  # of the description
WRITTEN = ("key", "spec", "invalid", "arrays", "digest")  # attributes of the group that the writer sets itself


class Exported(contextlib.AbstractContextManager["Exported"]):
    """Exported arrays, opened for reading: `store` describes them, and none of their values was read yet.

    Attributes:
        source: the file or folder.
        store: the set that its description promises, checked; its arrays have layouts and the digests of shards, but no shards.
    """

    def __init__(self, source: Path, store: FeatureStore):
        self.source, self.store = source, store

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open files, if there are any."""

    @abstractmethod
    def where(self, name: str, shard: int) -> str:
        """The file that holds a shard of an array, for messages."""

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Stored values of the rows start…stop - 1 of an array.

        Raises:
            StoreError: they are missing, cut, or of another shape or dtype than described.
        """

    def unit(self, unit: int) -> dict[str, np.ndarray]:
        """Stored values of the rows of one shard, [rows of the shard, ...], of every array with an image axis.

        Raises:
            StoreError: as `rows`.
        """
        layouts = {name: array.layout for name, array in self.store.arrays.items() if array.layout.has_image_axis}
        return {name: self.rows(name, *layout.rows(unit)) for name, layout in layouts.items()}


class Exchange(ABC):
    """A form in which other programs read a feature set.

    Attributes:
        looks: how it can be recognised, for messages.
    """

    name: ClassVar[str]
    looks: ClassVar[str]

    @abstractmethod
    def fits(self, source: Path) -> bool:
        """Whether something that exists looks like this form."""

    @abstractmethod
    def read(self, source: Path) -> Exported:
        """Open what was exported.

        Raises:
            StoreError: it is not of this form, its description is not as it was written, or arrays are missing.
        """

    @abstractmethod
    def write(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress) -> None:
        """Write arrays to `out`, which does not exist; each is read shard by shard."""

    def export(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress = lambda n: None) -> None:
        """Write stored values of arrays (named as `chosen_arrays` gives them), and the description of the feature set, to a new
        file or folder, whole or not at all. Digests are compared while it is read.

        Raises:
            StoreError: `out` exists, shards are damaged, or it cannot be written.
        """
        hidden = out.with_name(f".{out.name}")
        partial = partial_name(hidden)
        try:
            if os.path.lexists(out):
                raise StoreError(f"{out} already exists; give another name, or remove it first")
            out.parent.mkdir(parents=True, exist_ok=True)
            for left in filter(is_abandoned, partials_of(hidden)):  # by an export that was killed
                _remove(left)
            try:
                self.write(store, partial, names, progress)
                for path in (partial, *partial.rglob("*")):
                    sync_folder(path)  # or file
                if partial.is_file():
                    is_placed = place_file(partial, out)
                else:
                    with contextlib.suppress(OSError):  # files are in the way
                        os.rename(partial, out)
                    is_placed = not partial.exists()
                if not is_placed:
                    raise StoreError(f"{out} was made by others meanwhile, and stays; give another name, or remove it first")
            finally:
                _remove(partial)
            sync_folder(out.parent)
        except OSError as error:
            raise StoreError(f"{out} cannot be written ({error}); nothing is left; fix the cause and export again") from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def chosen_arrays(store: FeatureStore, selection: Sequence[str] | None) -> list[str]:
    """Names of the arrays to export, in the order of the store: all of this copy, or those selected and their scales. `patch`
    selects `patch/block5/view0` and everything else below `patch/`.
    """
    if selection is None:
        return list(store.arrays)
    chosen: set[str] = set()
    for name in selection:
        if not (matches := [n for n in store.arrays if n == name or n.startswith(f"{name}/")]):
            store.array(name)  # its error names the arrays that exist
        chosen |= set(matches)
    scales = {scale.name for name in chosen if (scale := store.arrays[name].scale) is not None}
    return [name for name in store.arrays if name in chosen | scales]


def import_from(exported: Exported, out: Path, progress: Progress = lambda n: None) -> FeatureStore:
    """Write what was exported to a folder and open it. The files are the same as before the export, byte for byte. What an
    interrupted import has written is kept and used.

    Raises:
        StoreError: `out` is occupied, or values are missing or not those that were exported.
    """
    store = exported.store

    def check(name: str, shard: int, values: np.ndarray) -> None:
        array = store.arrays[name]
        tail = array.layout.tail(shard, *array.layout.encode(shard, values))
        if xxhash.xxh3_128_hexdigest(tail) != array.shards[shard]["xxh3_128"]:
            first, stop = array.layout.rows(shard)
            raise StoreError(
                f"{exported.where(name, shard)}: rows {first} to {stop - 1} of {name} are not those that were exported: they "
                "do not have the digest in the description; export the feature set again"
            )

    layouts = [array.layout for array in store.arrays.values() if array.layout.has_image_axis]
    constants: dict[str, np.ndarray] = {}
    for name, layout in ((name, array.layout) for name, array in store.arrays.items() if not array.layout.has_image_axis):
        constants[name] = exported.rows(name, 0, layout.shape[0])
        for shard in range(layout.n_shards):
            check(name, shard, constants[name][slice(*layout.rows(shard))])
    with FeatureWriter(out, store.spec, layouts, constants) as writer:
        todo = writer.missing_units()
        progress((writer.n_units - len(todo)) * len(layouts))
        for unit in todo:
            rows = exported.unit(unit)
            for layout in layouts:
                check(layout.name, unit, rows[layout.name])
            start, stop = layouts[0].rows(unit)
            writer.write_unit(unit, rows, [note for note in store.attributes["invalid"] if start <= note["row"] < stop])
            progress(len(layouts))
        writer.finish({name: value for name, value in store.attributes.items() if name not in WRITTEN})
    return FeatureStore.open(out)


def description_of(form: str, store: FeatureStore, names: Sequence[str]) -> dict[str, Any]:
    """Version, form, the attributes of the group as they are in its zarr.json, and what that of each array says about it."""
    arrays = {
        name: {
            "shape": list(array.layout.shape),
            "dtype": array.layout.dtype,
            "codec": array.layout.codec,
            "dimension_names": list(array.layout.dimensions),
            "shard_rows": array.layout.shard_rows,
            "chunk_rows": array.layout.chunk_rows,
            "shards": array.shards,
        }
        for name, array in ((name, store.arrays[name]) for name in names)
    }
    return {"exchange": VERSION, "form": form, "group": dict(store.attributes), "arrays": arrays}


def load_json(source: str, text: str | bytes) -> Any:
    """The value of a JSON text; an error names its source."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{source} is not JSON ({error}); export the feature set again") from error


def described_store(source: str, form: str, description: Any) -> FeatureStore:
    """The feature set that a description promises: its arrays have layouts and digests of their shards, but no shards.

    The group's and the arrays' zarr.json are made again and checked as those of a store are: a description that was changed
    does not have the digests that it records.
    """
    try:
        if (version := description["exchange"]) != VERSION:
            raise StoreError(f"it has version {version!r}, this program reads {VERSION}")
        if description["form"] != form:
            raise StoreError(f"it is of the form {description['form']!r}, read as {form}")
        group, entries = description["group"], description["arrays"]
        _check_types(group, entries)
        documents = {f"{name}/zarr.json": _zarr_json(name, entry) for name, entry in entries.items()}
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


def _zarr_json(name: str, entry: Mapping[str, Any]) -> bytes:
    dimensions = tuple(entry["dimension_names"])
    layout = ArrayLayout(
        name, tuple(entry["shape"]), entry["dtype"], dimensions, entry["shard_rows"], entry["chunk_rows"], entry["codec"]
    )
    return layout.to_zarr({"shards": entry["shards"]})


def _check_types(group: Any, entries: Any) -> None:
    """Refuse values of types that the writer would accept, and no extraction writes."""
    spec = group["spec"]
    texts = ("weights", "architecture", "data", "point", "dtype", "compute_dtype")
    as_expected = {
        "encoder": isinstance(group["encoder"], str),
        "classes": group["classes"] is None or _are_texts(group["classes"]),
        "norm_eps": group["norm_eps"] is None or type(group["norm_eps"]) in (int, float),
        "encoder_flops": group.get("encoder_flops") is None or type(group["encoder_flops"]) is int,
        "problems": _are_texts(group["problems"]),
        "invalid": _are_notes(group["invalid"], spec["n_images"]),
        "arrays": isinstance(group["arrays"], dict) and _are_texts(list(group["arrays"].values())),
        **{f"spec.{name}": isinstance(spec[name], str) for name in texts},
        **{f"spec.{name}": type(spec[name]) is int and spec[name] > 0 for name in ("n_images", "n_views")},
        **{f"spec.{name}": _are_texts(spec.get(name, [])) for name in ("statistics", "maps", "vectors")},
        "spec.drop_path": type(spec.get("drop_path", 0.0)) is float and 0 <= spec.get("drop_path", 0.0) < 1,
        "spec.blocks": isinstance(spec["blocks"], list) and all(type(block) is int for block in spec["blocks"]),
        "spec.transform": isinstance(spec["transform"], dict),
    }
    for name, entry in entries.items():
        as_expected[name] = (
            isinstance(entry["dtype"], str) and isinstance(entry["codec"], str | None) and _are_texts(entry["dimension_names"])
        )
        as_expected[name] &= isinstance(entry["shape"], list) and all(
            type(n) is int and n > 0 for n in (*entry["shape"], entry["shard_rows"], entry["chunk_rows"])
        )
    if wrong := [name for name, holds in as_expected.items() if not holds]:
        raise StoreError(f"it has values of a wrong type or range in {', '.join(wrong)}")


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _are_notes(notes: Any, n_images: Any) -> bool:
    rows = [note["row"] for note in notes]
    fields = all(set(note) == {"row", "id", "problem"} and _are_texts([note["id"], note["problem"]]) for note in notes)
    ascending = all(row < following for row, following in zip([-1, *rows], [*rows, n_images], strict=True))
    return fields and all(type(row) is int for row in rows) and ascending


def _check_arrays(store: FeatureStore) -> None:
    """Refuse arrays that do not fit each other as those that are written together do."""
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


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def read_description(folder: Path) -> Any:
    file = folder / DESCRIPTION
    try:
        return load_json(str(file), file.read_bytes())
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}); name what `beyondcls store export` wrote") from error
