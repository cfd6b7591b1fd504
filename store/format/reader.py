"""Reading a feature set: checked on opening, each shard's digest checked when it is first touched, or all of them at once."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash

from store.errors import StoreError, other_version, too_old, unknown
from store.format.array import VERIFY, ArrayReader, Verify, row_numbers
from store.format.layout import ATTRIBUTE, GROUP, SAFE_NAME, SCALE, ArrayName, kind_of, with_digest
from store.format.spec import FORMAT_VERSION, FeatureSpec
from store.format.unfinished import progress_at
from store.places import LocalFolder, place_at
from store.places.cache import DiskCache
from store.places.object_store import ObjectStore
from store.places.place import Place, map_parallel

if TYPE_CHECKING:
    import torch

    from store.format.dataset import TokenDataset
    from store.truths.reading import Instances, Segmentation

NAMED_MAP = re.compile(r"\w+/block(0|[1-9][0-9]{0,8})", re.ASCII)
TITLES = {  # of kinds, in messages
    "cls": "[cls] tokens",
    "patch": "patch tokens",
    "average": "average patch tokens",
    "pooled": "vectors of the encoder's own pooling",
    "attention": "attention maps",
}
REMEDIES = {  # for a set without that kind
    "patch": "add them: beyondcls extract --extend --vectors kept with the other options that the set was made with",
    "average": "add them: beyondcls extract --extend --vectors all with the options that the set was made with",
    "pooled": ("extract with an encoder that pools by itself"),
}


class FeatureStore:
    """One feature set on disk: the features of one encoder for one data set.

    A copy may lack whole kinds (`patch`, `cls`, …): pulling only what a probe reads is meant to work. Kinds that are present
    must be complete.

    Attributes:
        place: where it is.
        spec: its description (FeatureSpec).
        attributes: `encoder` (name), `classes` (names or None), `invalid` (rows recorded as unreadable), `norm_eps`.
        arrays: the arrays whose kind is in this copy, by name, e.g. `patch/block5/view0`.
    """

    def __init__(self, place: Place, spec: FeatureSpec, attributes: Mapping[str, Any], verify: Verify):
        self.place, self.spec, self.attributes, self.verify = place, spec, attributes, verify
        self.arrays: dict[str, ArrayReader] = {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], key: str | None = None, verify: Verify = "first", cache: DiskCache | None = None
    ) -> "FeatureStore":
        """Open and check a feature set.

        Args:
            path: its folder, or its address in an object store (s3://…, through fsspec).
            key: the key it must have; any by default.
            verify: compare rows with their digest when this process first reads them ("first"), each time ("always") or
                "never".
            cache: keeps on this machine's disk what is read from an object store; ignored for a local folder.

        Raises:
            StoreError: not a feature set, another key or format version, edited metadata, missing or cut shards.
        """
        if verify not in VERIFY:
            raise StoreError(unknown("verify", verify, VERIFY))
        store = cls.describe(path, key, verify)
        if cache is not None and isinstance(store.place, ObjectStore):
            store.place.keep_in(cache, store.spec.key, store.attributes["digest"])
        for name in _present_arrays(store):
            store.add(name)
        for array in store.arrays.values():
            scale = array.scale.layout if array.scale is not None else None
            if array.scale_shape != (scale and (scale.shape, scale.dtype)):
                raise StoreError(f"{store.place.address(array.name)}: its scales are missing or do not fit; extract it again")
            for shard in range(array.layout.n_shards):
                if problem := array.problem(shard):
                    raise StoreError(problem)
        return store

    @classmethod
    def describe(cls, path: str | os.PathLike[str] | Place, key: str | None = None, verify: Verify = "first") -> "FeatureStore":
        """A feature set whose description was checked, but none of its arrays yet: `arrays` is empty.

        Raises:
            StoreError: as `open`, as far as the group's zarr.json shows.
        """
        place = path if isinstance(path, Place) else place_at(path)
        file, where = place.address("zarr.json"), place.address()
        if (text := place.content("zarr.json")) is None:
            raise StoreError(f"{where} is not a feature set: it has no zarr.json; {_hint(place)}")
        try:
            meta = json.loads(text)
            attributes = meta["attributes"][ATTRIBUTE]
            spec_fields, names, _ = attributes["spec"], list(attributes["arrays"].keys()), attributes["key"]
            if (version := spec_fields["format_version"]) != FORMAT_VERSION:
                raise StoreError(other_version(where, version, FORMAT_VERSION, "extract it again"))
            if text != with_digest(meta):
                raise StoreError(f"{file} was changed since the feature set was written; pull or extract it again")
            spec = FeatureSpec.from_dict(spec_fields)
            if unnumbered := [name for name in spec.maps if not NAMED_MAP.fullmatch(name)]:
                raise StoreError(too_old(where, f"an attention map {unnumbered[0]!r}", "ROW/blockB", "extract it again"))
            _ = spec.key, len(attributes.get("classes") or ()), [note["row"] for note in attributes["invalid"]]
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"{file} does not describe a feature set ({error!r}); pull or extract it again") from error
        if not all(SAFE_NAME.fullmatch(name) for name in names):
            raise StoreError(f"{file} names arrays outside its folder; do not use this store")
        if attributes["key"] != spec.key:
            raise StoreError(
                f"{where}: its key {attributes['key']} does not belong to its description, which has {spec.key}; "
                "extract it again"
            )
        if key is not None and key != spec.key:
            raise StoreError(
                f"{where} has key {spec.key}, expected {key}: other weights, transform, blocks or data; "
                "extract it again or name the right folder"
            )
        return cls(place, spec, attributes, verify)

    def add(self, name: str) -> ArrayReader:
        """Open one of the arrays that the description names.

        Raises:
            StoreError: its zarr.json is missing, was changed, or is not in this format.
        """
        *groups, document = _document_names(name)
        for group in groups:
            if self.place.content(group) != GROUP:
                raise StoreError(
                    f"{self.place.address(group)} is missing or was changed; pull or extract the feature set again"
                )
        file, text = self.place.address(document), self.place.content(document)
        if text is None or xxhash.xxh3_128_hexdigest(text) != self.attributes["arrays"][name]:
            state = "is missing" if text is None else "was changed"
            raise StoreError(f"{file} {state} since the feature set was written; pull or extract it again")
        try:
            meta = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{file} is not JSON ({error!r}); pull or extract it again") from error
        array = ArrayReader(self.place, name, meta, self.verify)
        if array.layout.has_image_axis and array.shape[0] != self.spec.n_images:
            raise StoreError(f"{file} has {array.shape[0]} rows for {self.spec.n_images} images; extract it again")
        self.arrays[name] = array
        main = name.removesuffix(SCALE)
        if {main, main + SCALE} <= self.arrays.keys():  # whichever of the two was opened first
            self.arrays[main].scale = self.arrays[main + SCALE]
        return array

    @property
    def path(self) -> Path:
        """Its folder.

        Raises:
            StoreError: it is in an object store, where this cannot be done.
        """
        if not isinstance(self.place, LocalFolder):
            raise StoreError(f"{self.place.address()} is not a local folder; copy it to one first")
        return self.place.folder

    @property
    def where(self) -> str:
        """Its folder or address, for messages."""
        return self.place.address()

    def __len__(self) -> int:
        """Number of images."""
        return self.spec.n_images

    def __repr__(self) -> str:
        return f"FeatureStore({self.where!r}, {self.attributes.get('encoder')}, {len(self)} images, {', '.join(self.kinds)})"

    def _repr_html_(self) -> str:
        """The set as a table, in notebooks."""
        from store.shown import first_names, html_table

        n_invalid = len(self.attributes["invalid"])
        missing = [kind for kind in self.extracted_kinds if kind not in self.kinds]
        return html_table(
            f"FeatureStore {self.where}",
            {
                "encoder": self.attributes.get("encoder"),
                "images": f"{len(self):,}" + (f", {n_invalid:,} of them invalid" if n_invalid else ""),
                "classes": first_names(self.attributes.get("classes")),
                **{
                    name: f"{list(array.shape)} {array.layout.codec or array.dtype}, {array.nbytes / 1e6:,.1f} MB"
                    for name, array in self.arrays.items()
                    if not name.endswith(SCALE) and kind_of(name) != "images"
                },
                **({"not in this copy": ", ".join(missing)} if missing else {}),
                "key": self.spec.key,
            },
        )

    @property
    def shard_rows(self) -> int:
        """Images of a shard."""
        return next(a.layout.shard_rows for a in self.arrays.values() if a.layout.has_image_axis)

    @property
    def kinds(self) -> list[str]:
        """Kinds of arrays that are in this copy: patch, cls, statistics, …"""
        return sorted({kind_of(name) for name in self.arrays})

    @property
    def extracted_kinds(self) -> list[str]:
        """Kinds of arrays that were extracted, whether in this copy or not: `cls`, `images`, `patch`, …"""
        return sorted({kind_of(name) for name in self.attributes["arrays"]})

    def array(self, name: str) -> ArrayReader:
        """An array by its full name.

        Raises:
            StoreError: it was not extracted, or its kind is not in this copy.
        """
        if name in self.arrays:
            return self.arrays[name]
        kind = kind_of(name)
        written = [n for n in self.attributes["arrays"] if kind_of(n) == kind]
        if name in written:
            folder = self.place.address(kind)
            raise StoreError(f"{folder} is not in this copy of the feature set; fetch it: dvc pull {folder}")
        if written:
            raise StoreError(
                f"{self.where} has no array {name!r}; it has: {', '.join(written)}. Extract with that block or view"
            )
        raise StoreError(
            f"{self.where} has no {TITLES.get(kind, repr(kind))} (it has: {', '.join(self.extracted_kinds)}); choose an "
            f"aggregator that reads something else, or {REMEDIES.get(kind, 'extract with an encoder that has them')}"
        )

    def tokens(
        self, kind: Literal["patch", "cls", "registers", "average"], block: int | None = None, view: int = 0
    ) -> ArrayReader:
        """Tokens of one block: patch [N, T, D], cls [N, D], registers [N, R, D]; or the average patch token, [N, D].

        The deepest block whose patch tokens are stored by default; where none are, the deepest whose vectors are.
        """
        chosen = self.spec.deepest if block is None else block
        return self.array(str(ArrayName(kind, "", chosen, view)))

    def attention(self, row: str, block: int | None = None, view: int = 0) -> ArrayReader:
        """A row of one block's attention over the patches, [N, H, T]: of [cls] ("cls") or of the centre patch ("centre").

        Args:
            block: `map_block` by default.

        Raises:
            StoreError: that block's map is not stored; the message names those that are.
        """
        stored, chosen = self.map_blocks(row), self.map_block(row) if block is None else block
        if stored and chosen not in stored:
            blocks = f"block{'s' * (len(stored) > 1)} {', '.join(map(str, stored))}"
            raise StoreError(
                f"{self.where} keeps the attention map {row!r} of {blocks}, not of block {chosen}; add it: "
                f"beyondcls extract --extend --blocks {chosen} with the options that the set was made with"
            )
        return self.array(str(ArrayName("attention", row, chosen, view)))

    def map_blocks(self, row: str) -> tuple[int, ...]:
        """Blocks of which a row of attention is kept, ascending."""
        return self.spec.map_blocks(row)

    def map_block(self, row: str) -> int:
        """The deepest block whose tokens are kept, or if its map is not, the deepest whose map is."""
        deepest, stored = self.spec.deepest, self.map_blocks(row)
        return deepest if deepest in stored or not stored else stored[-1]

    @property
    def n_blocks(self) -> int | None:
        """Blocks of the encoder, L; None in a copy without statistics."""
        return next((array.shape[1] for name, array in self.arrays.items() if kind_of(name) == "statistics"), None)

    def rows(self, indices: Sequence[int] | np.ndarray, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Rows of several arrays in the order of `indices`: name -> [n, ...], of all arrays with an image axis by default."""
        chosen = names or [n for n, a in self.arrays.items() if a.layout.has_image_axis and not n.endswith(SCALE)]
        return {name: self.array(name).rows(indices) for name in chosen}

    def to_torch_dataset(
        self,
        kind: Literal["patch", "cls", "registers", "average"] = "patch",
        *,
        block: int | None = None,
        view: int = 0,
        rows: Sequence[int] | np.ndarray | None = None,
        dtype: "torch.dtype | str | None" = "float32",
        transform: "Callable[[torch.Tensor], Any] | None" = None,
    ) -> "TokenDataset":
        """Images as (tokens, label), for a `torch.utils.data.DataLoader`; `beyondcls.Loader` is faster and shuffles as well.

        A label is a number, or [C] float32 with several labels an image.

        Args:
            kind, block, view: as for `tokens`.
            rows: which images; all by default.
            dtype: of the tokens, of torch or its name; None leaves them as their codec decodes them (float16 for float16).
            transform: called with the tokens of one image; with worker processes that are spawned, a function of a module.

        Raises:
            StoreError: no such tokens or dtype; or among `rows` are images without a label, or that could not be read.
        """
        from store.format.dataset import TokenDataset

        chosen = np.arange(len(self)) if rows is None else row_numbers(rows)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise StoreError(f"rows {chosen.min()} to {chosen.max()} are asked for, {self.where} has rows 0 to {len(self) - 1}")
        if len(bad := chosen[~self.labelled[chosen]]):
            raise StoreError(
                f"{len(bad)} of {len(chosen)} images of {self.where} have no label or could not be read, first row {bad[0]}; "
                "leave them out: rows=np.flatnonzero(store.labelled)"
            )
        return TokenDataset(self.tokens(kind, block, view), self.labels, chosen, dtype, transform)

    @cached_property
    def labels(self) -> np.ndarray:
        """[N] int64, the class, -1 where an image has none; in a multi-label set [N, C] uint8, 1 for each class."""
        return self.array("images/labels" if self.multilabel else "images/label").all()

    @property
    def multilabel(self) -> bool:
        """Whether an image may have no label, or several."""
        return "images/labels" in self.attributes["arrays"]

    @cached_property
    def labelled(self) -> np.ndarray:
        """[N] bool: valid images that can be trained on or counted. In a multi-label set, no label is an answer too."""
        return self.valid if self.multilabel else self.valid & (self.labels >= 0)

    def boxes(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """[n, 4] float32 corners x0, y0, x1, y1 in pixels of the original, and [n] int64 classes (-1 if unknown), of one image.

        Raises:
            StoreError: the data set has no boxes.
        """
        corners, labels = (self.array(f"images/{name}").rows([row])[0] for name in ("boxes", "box_label"))
        is_box = corners[:, 2] >= 0  # shorter lists of boxes are padded with -1
        return corners[is_box], labels[is_box]

    @cached_property
    def segmentation(self) -> "Segmentation":
        """Label maps of the images, as the data set publishes them.

        Raises:
            StoreError: the set has none, or their arrays do not fit one another.
        """
        from store.truths.reading import Segmentation

        return Segmentation(*self._truth_columns(Segmentation.name))

    @cached_property
    def instances(self) -> "Instances":
        """Objects of the images: boxes, and masks where the data set has them.

        Raises:
            StoreError: the set has none, or their arrays do not fit one another.
        """
        from store.truths.reading import Instances

        return Instances(*self._truth_columns(Instances.name))

    def _truth_columns(self, name: str) -> tuple[str, Mapping[str, ArrayReader], Sequence[str], Callable[[str], ArrayReader]]:
        if name not in self.spec.truths:
            known = f"it has {', '.join(self.spec.truths)}" if self.spec.truths else "it has no truths besides labels and boxes"
            raise StoreError(
                f"{self.where} has no {name} ({known}); where the data set has it, add it, without running the encoder: "
                f"beyondcls extract --extend --truths {name} with the options that the set was made with"
            )
        self.array(f"images/{name}/first")  # a copy may lack its kind
        classes = self.attributes.get("truth_classes", {}).get(name, ())
        return self.place.address(f"images/{name}"), self.arrays, classes, self.array

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches; as many of both where the set does not say otherwise.

        Raises:
            StoreError: this copy has nothing of patches, or their number is no square.
        """
        if recorded := self.attributes.get("grid"):
            return int(recorded[0]), int(recorded[1])
        axes = {"patch": 1, "attention": 2}
        counts = (a.shape[axes[kind_of(n)]] for n, a in self.arrays.items() if kind_of(n) in axes and not n.endswith(SCALE))
        if (n_patches := next(counts, None)) is None:
            raise StoreError(f"{self.where} has no patch tokens and no attention maps in this copy; fetch one: dvc pull")
        side = math.isqrt(n_patches)
        if side * side != n_patches:
            raise StoreError(
                f"{self.where} has {n_patches} patches, which are no square, and does not say of what grid; extract it again"
            )
        return side, side

    def check_evaluation_crop(self) -> None:
        """Refuse a set whose view 0 shows one of several windows of an image.

        Raises:
            StoreError: it is such a set.
        """
        if self.spec.has_windows:
            raise StoreError(
                f"views of {self.where} are windows (crop_mode slide), expected an evaluation crop: only `beyondcls segment` "
                "puts windows together; extract the images with --crop-mode center, squash or border"
            )

    @cached_property
    def valid(self) -> np.ndarray:
        """[N] bool: false for images that could not be read and were recorded as such."""
        return self.array("images/valid").all().astype(bool)

    @cached_property
    def ids(self) -> list[str]:
        """The id of each image."""
        return [bytes(row).rstrip(b"\0").decode() for row in self.array("images/id").all()]

    @property
    def n_classes(self) -> int:
        """Number of classes: of the names given at extraction, else the largest label plus one."""
        names = self.attributes.get("classes")
        if self.multilabel:
            return self.labels.shape[1]
        return len(names) if names else int(self.labels.max()) + 1


def _hint(place: Place) -> str:
    if (progress := progress_at(place)) is not None:
        return (
            f"it is being written, {progress[0]} of {progress[1]} units are there: wait until its tasks have finished; if none "
            "is running, give their command again"
        )
    if isinstance(place, LocalFolder) and (staged := sorted(place.folder.parent.glob(f".staging/{place.folder.name}-*[!k]"))):
        return f"an extraction into it is unfinished ({staged[0]}): run it again"
    if place.content("images/zarr.json") is not None:
        return "that is lost, or not sent yet, and nothing else vouches for the arrays: send, pull or extract the set again"
    return "name what `beyondcls extract --out` wrote"


def _present_arrays(store: FeatureStore) -> list[str]:
    """Arrays whose kind is in this copy; they are announced, so that their descriptions are fetched together."""
    names = [name for name in store.attributes["arrays"] if store.place.has_folder(kind_of(name))]
    store.place.expect({document for name in names for document in _document_names(name)})
    return names


def _document_names(name: str) -> list[str]:
    """The zarr.json of an array and, before it, of the groups around it, the outermost of the set aside."""
    parts = name.split("/")
    return [f"{'/'.join(parts[:i])}/zarr.json" for i in range(1, len(parts) + 1)]


def verify(path: str | os.PathLike[str]) -> Iterator[tuple[str, int, str | None]]:
    """For every shard of this copy: its array, its number, and None or what is wrong with it.

    An array whose zarr.json is damaged has shard -1, and none of its shards is checked.

    Raises:
        StoreError: the group's own zarr.json is missing or damaged.
    """
    store = FeatureStore.describe(path)
    shards: list[tuple[str, int, str | None]] = []
    for name in _present_arrays(store):
        try:
            shards += [(name, shard, None) for shard in range(store.add(name).layout.n_shards)]
        except StoreError as error:
            shards.append((name, -1, str(error)))

    def check(item: tuple[str, int, str | None]) -> tuple[str, int, str | None]:
        name, shard, problem = item
        try:
            if problem is None:
                store.arrays[name].check(shard)
        except StoreError as error:
            problem = str(error)
        return name, shard, problem

    yield from map_parallel(check, shards, store.place.requests)
