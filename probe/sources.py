"""The stored arrays behind the kinds of features that heads read, and whether feature sets belong together."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Integer

from store import BeyondClsError, FeatureStore, Loader, StoreError, join
from store.format.array import ArrayReader
from store.format.classes import are_identifiers, are_their_numbers, numbers_among, renumber, whole_number
from store.format.layout import ArrayName, kind_of
from store.format.spec import EXTENDABLE_FIELDS

JOINED = "joined/"
TOKENS = ("patch", "cls", "registers")
VECTORS = ("average", "pooled")  # one an image
OF_ENCODER = ("encoder_weights", "architecture", "transform")  # in the description of a head
FRAMING = ("crop_mode", "crop_pct")  # of a transform: which part of an image is shown, not how
OF_BLOCKS = (*TOKENS, "average")  # kinds that mean the probed block, where they name none


@dataclass(frozen=True, eq=False)
class Source:
    """A feature set to train on or to measure on.

    Attributes:
        store: the feature set.
        joined: a second feature set of the same images; its features are the kinds that begin with `joined/`.
        block: the block that `patch`, `cls` and `attention/cls` refer to; the deepest stored one by default.
        subset: rows to use, of those that are valid and labelled (and in the second set, if there is one); all by default.
        classes_of: the feature set whose class numbers `labels` are; this one by default.
    """

    store: FeatureStore
    joined: FeatureStore | None = None
    block: int | None = None
    subset: np.ndarray | None = None
    classes_of: FeatureStore | None = None

    def arrays(self, kind: str, views: Iterable[int] = (0,)) -> list[ArrayReader]:
        """The arrays of a kind, one for each view: "patch", "cls/block5", "attention/cls", "joined/attention/cls/block5".

        A kind that names no block means the block that is probed, or the deepest one of the second set.

        Raises:
            StoreError: the set has no such tokens, block, map or view; or there is no second set.
        """
        store, block, plain_kind = self.store, self.probed_block, kind.removeprefix(JOINED)
        if kind.startswith(JOINED):
            if self.joined is None:
                raise StoreError(f"this head reads {kind!r}, of a second feature set; name it with --joined")
            store, block = self.joined, self.joined.spec.deepest
        name = ArrayName.parse(plain_kind)
        if name.kind == "attention":
            return [store.attention(name.what, block if name.block is None else name.block, view) for view in views]
        return [store.array(_array_name(plain_kind, block, view)) for view in views]

    def describes(self, kind: str, views: Iterable[int] = (0,)) -> bool:
        """Whether a kind of this set, not of a second one, was extracted in these views, be it in this copy or not."""
        names = (_array_name(kind, self.probed_block, view) for view in views)
        return all(name in self.store.attributes["arrays"] for name in names)

    @property
    def probed_block(self) -> int:
        """The block that `patch`, `cls` and `attention/cls` refer to."""
        return self.store.spec.deepest if self.block is None else self.block

    @cached_property
    def numbers(self) -> np.ndarray | None:
        """For each class of this set, its number in `labels`, -1 for none; None where it has the same there."""
        return numbers_among(*(store.attributes.get("classes") for store in (self.classes_of or self.store, self.store)))

    @cached_property
    def labels(self) -> np.ndarray:
        """[N] or [N, K] as those of the set, but as `classes_of` numbers the classes."""
        return renumber(self.store.labels, self.numbers, self.n_classes)

    @property
    def n_classes(self) -> int:
        """K of `labels`."""
        return (self.classes_of or self.store).n_classes

    @cached_property
    def rows(self) -> np.ndarray:
        """Images that count, ascending.

        Raises:
            StoreError: no image is usable, or the subset has rows that this set does not have; or view 0 is no evaluation crop.
        """
        self.store.check_evaluation_crop()
        usable = self.store.labelled.copy()
        if self.joined is not None:
            usable &= self.row_of_joined >= 0
        if self.subset is not None:
            chosen, n = np.asarray(self.subset), len(usable)
            if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
                given = f"{chosen.dtype} {chosen.shape}"
                raise StoreError(f"a subset is {given}, expected row numbers; of a mask, take np.flatnonzero")
            if len(chosen) and not 0 <= chosen.min() <= chosen.max() < n:
                bounds = f"{chosen.min()} to {chosen.max()}"
                raise StoreError(f"a subset has rows {bounds}, but {self.store.where} has {n} images")
            usable &= np.isin(np.arange(n), chosen)
        if not usable.any():
            among = "" if self.subset is None else " among the rows of the subset"
            shared = "" if self.joined is None else f" that {self.joined.where} has too"
            raise StoreError(f"{self.store.where} has no valid, labelled image{shared}{among}; a probe needs labels")
        return np.flatnonzero(usable)

    def part(self, rows: np.ndarray) -> "Source":
        """The same source restricted to some of its `rows`; joined sets are not compared again."""
        part = replace(self, subset=rows)
        part.__dict__["rows"] = rows
        if self.joined is not None:
            part.__dict__["row_of_joined"] = self.row_of_joined
        return part

    @cached_property
    def row_of_joined(self) -> np.ndarray:
        """[N] row of each image in the second set, -1 where it has none.

        Raises:
            StoreError: the second set has other images, or the same ones with other crops.
        """
        assert self.joined is not None
        rows = join(self.store, self.joined)
        shared = np.flatnonzero((rows >= 0) & self.store.valid)  # what could not be read has no box
        boxes = [s.array("images/crop/view0").rows(r) for s, r in ((self.store, shared), (self.joined, rows[shared]))]
        # Boxes are in pixels of the original; encoders of other input sizes round them otherwise.
        differs = np.abs(boxes[0] - boxes[1]).max(1) > 1.5
        if differs.any():
            row = shared[differs.argmax()]
            ours, theirs = (np.round(b[differs.argmax()], 1).tolist() for b in boxes)
            raise StoreError(
                f"{self.store.where} shows {ours} of image {self.store.ids[row]!r}, {self.joined.where} shows {theirs}; "
                "join feature sets with the same crops (crop_pct and crop_mode of the two encoders)"
            )
        return rows

    def loader(self, kinds: Iterable[str], views: Sequence[int] = (0,), **options: Any) -> Loader:
        """Batches of some kinds, by name, in one of the views at random; `options` are those of `Loader`."""
        arrays: Mapping[str, list[ArrayReader]] = {kind: self.arrays(kind, views) for kind in kinds}
        joined = {kind: self.row_of_joined for kind in arrays if kind.startswith(JOINED)}
        return Loader(arrays, self.labels, joined=joined, **{"rows": self.rows, **options})

    @property
    def description(self) -> dict[str, Any]:
        """The encoder that a probe needs, and whether images have one label or several; plain values."""
        description = {**encoder_of(self.store, self.probed_block), "multilabel": self.store.multilabel}
        if self.joined is not None:
            description["joined_encoder"] = encoder_of(self.joined, self.joined.spec.deepest)
        return description

    @property
    def dim(self) -> int:
        """D of the tokens of the block that is probed.

        Raises:
            StoreError: this copy of the set has no tokens.
        """
        shapes = self._shapes(TOKENS) or self._shapes(VECTORS)
        if not shapes:
            raise StoreError(f"{self.store.where} has no tokens in this copy; fetch patch or cls: dvc pull {self.store.where}")
        return shapes[0][-1]

    def check_width(self, kinds: Iterable[str], dim: int) -> None:
        """Refuse tokens of another width.

        Raises:
            StoreError: tokens among `kinds` are not `dim` wide.
        """
        for kind in kinds:
            if kind_of(kind) in (*TOKENS, *VECTORS) and (width := self.arrays(kind)[0].shape[-1]) != dim:
                raise StoreError(f"{kind} of {self.store.where} is {width} wide, expected {dim} as the other tokens")

    def check_square(self, aggregator: str) -> None:
        """Refuse a grid that is not square for an aggregator that takes it for one: 4 x 9 patches are as many as 6 x 6.

        Raises:
            StoreError: the grid is not square.
        """
        rows, columns = self.store.grid
        if rows != columns:
            raise StoreError(
                f"{aggregator} takes patches for a square grid, but {self.store.where} has {rows} x {columns}; use a head "
                "without positions, such as 'average', or extract images with a square --input-size"
            )

    @property
    def n_patches(self) -> int | None:
        """T; None for a set without patch tokens."""
        shapes = self._shapes(("patch",))
        return shapes[0][1] if shapes else None

    def _shapes(self, kinds: Container[str]) -> list[tuple[int, ...]]:
        """Shapes of the arrays of these kinds, without scales."""
        names = {ArrayName.parse(name): array.shape for name, array in self.store.arrays.items()}
        return [shape for name, shape in names.items() if name.kind in kinds and not name.is_scale]


def _array_name(kind: str, block: int, view: int) -> str:
    """The array of a kind that is no map."""
    return str(replace(ArrayName.parse(kind), block=block if kind in OF_BLOCKS else ArrayName.parse(kind).block, view=view))


def check_encoder(training: FeatureStore, other: FeatureStore) -> None:
    """Refuse sets of two encoders. One may hold more blocks, views, statistics or maps than the other.

    Raises:
        StoreError: they are of two encoders, or transforms, dtypes, ….
    """
    if differ := training.spec.explained(other.spec, EXTENDABLE_FIELDS):
        raise StoreError(
            f"{training.where} ({training.attributes['encoder']}, key {training.spec.key}) and {other.where} "
            f"({other.attributes['encoder']}, key {other.spec.key}) are of two encoders or extractions: {differ} differ"
        )


def check_pair(training: FeatureStore, test: FeatureStore) -> None:
    """Refuse sets that do not belong together.

    Classes are what they are called, in whatever order: `Source.labels` of the test set are to be those of the training set.

    Raises:
        StoreError: they are from two encoders (or transforms, dtypes), or have different classes; one set alone has names, and
            they are not its numbers; or test images are of classes that are not learnt.
    """
    check_encoder(training, test)
    for store in (training, test):
        if not store.labelled.any():
            raise StoreError(f"{store.where} has no valid, labelled image; a probe needs labels")
    kinds = ["several labels" if store.multilabel else "one label" for store in (training, test)]
    if kinds[0] != kinds[1]:
        raise StoreError(f"{training.where} has {kinds[0]} an image, {test.where} {kinds[1]}; use splits of one data set")
    for store in (training, test):
        check_class_numbers(store)
    ours, theirs = (store.attributes.get("classes") or [] for store in (training, test))
    if not (ours and theirs):
        if training.n_classes != test.n_classes:
            raise StoreError(
                f"{training.where} has {training.n_classes} classes, {test.where} has {test.n_classes}; "
                "use splits of one data set, or give both extractions the same --classes file"
            )
        if (names := ours or theirs) and not are_their_numbers(names):
            named, numbered = (training, test) if ours else (test, training)
            wrong = next(label for label, name in enumerate(names) if whole_number(name) != label)
            raise StoreError(
                f"{numbered.where} has numbers for classes, and nothing says that its class {wrong} is {names[wrong]!r}, as in "
                f"{named.where}; extract it again with --update and --classes FILE, the names in the order of its numbers, one "
                "a line: its features are kept"
            )
        return
    if (numbers := numbers_among(ours, theirs)) is None:
        return
    if training.multilabel and sorted(numbers) != list(range(len(ours))):
        only = [name for name, number in zip(theirs, numbers, strict=True) if number < 0]
        only += [name for number, name in enumerate(ours) if number not in numbers]
        raise StoreError(
            f"{training.where} has {len(ours)} classes, {test.where} has {len(theirs)}; only one of them has {few_of(only)}: "
            "where images have several labels, give both extractions the same --classes file"
        )
    labels = test.labels[test.labelled]
    if not training.multilabel and (lacking := numbers[labels] < 0).any():
        n, names = lacking.sum(), [theirs[label] for label in np.unique(labels[lacking])]
        raise StoreError(
            f"{n} of {len(labels)} images of {test.where} are of classes that {training.where} lacks: {few_of(names)}, "
            f"besides {few_of(ours)} there; extract test images of those classes alone, or give both the same --classes"
        )


def check_class_numbers(store: FeatureStore) -> None:
    """Refuse labels that are no numbers of classes.

    Raises:
        StoreError: they exceed the number of classes, or are identifiers, and there are no names.
    """
    if store.multilabel:
        return
    highest, n_classes = int(store.labels.max()), store.n_classes
    if highest >= n_classes:
        raise StoreError(f"{store.where} has label {highest}, but {n_classes} classes; labels count from 0: extract it again")
    if not store.attributes.get("classes") and are_identifiers(highest, n := len(np.unique(store.labels[store.labelled]))):
        raise StoreError(
            f"{store.where} has labels up to {highest}, of which {n} occur: these are identifiers, not class numbers; extract "
            "it again with --update, which names the classes by them and keeps the features"
        )


def check_labels(training: Source, test: Source) -> None:
    """Refuse images from which nothing can be learnt, or of which nothing can be measured.

    Raises:
        StoreError: no class tells the training images apart; or images may have several labels, and no test image has one.
    """
    if len(training.rows) > 1 and (problem := indistinct(training.store.labels[training.rows])):
        raise StoreError(f"{training.store.where}: {problem}; name a set, or a subset, whose labels differ")
    if test.store.multilabel and not (test.store.labels[test.rows] > 0).any():
        raise StoreError(
            f"{test.store.where}: none of the {len(test.rows):,} test images has a label, to measure by; name a set with labels"
        )


def indistinct(labels: Integer[np.ndarray, "N *C"]) -> str:
    """Why no class tells these images apart; empty if some class does."""
    n = len(labels)
    if labels.ndim == 1:
        same = f"all {n:,} training images are of class {labels[0]}, expected 2 classes or more"
        return same if (labels == labels[0]).all() else ""
    if not (labels > 0).any():
        return f"none of the {n:,} training images has a label"
    apart = (labels > 0).any(0) & (labels == 0).any(0)
    return "" if apart.any() else f"no class tells the {n:,} training images apart: each has all of them or none"


def few_of(names: Sequence[str]) -> str:
    """The first of some names, and how many there are."""
    return ", ".join(map(repr, names[:3])) + (f", … ({len(names)} in all)" if len(names) > 3 else "")


def encoder_of(store: FeatureStore, block: int) -> dict[str, Any]:
    """The encoder of a set, and its blocks whose tokens and attention maps a probe reads."""
    spec, blocks = store.spec, {"block": block, "attention_block": block}
    described = {"encoder_weights": spec.weights, "architecture": spec.architecture, "transform": dict(spec.transform)}
    return {"encoder": store.attributes["encoder"], **described, **blocks}


def check_trained_on(
    head: Any, recorded: Mapping[str, Any], store: FeatureStore, names: Iterable[str] = OF_ENCODER, *, framed: bool = True
) -> None:
    """Refuse features of another encoder than those that a head was trained on.

    Args:
        head: its place, for the message; `recorded`: its description.
        names: of what has to be the same.
        framed: whether the same part of each image has to be shown, too.

    Raises:
        BeyondClsError: they are of another one, or the description does not say of which.
    """
    ours = encoder_of(store, store.spec.deepest)
    for name in names:
        theirs, own = recorded.get(name), ours[name]
        if name == "transform" and not framed and theirs is not None:
            theirs, own = ({key: value for key, value in one.items() if key not in FRAMING} for one in (theirs, own))
        if theirs != own:
            raise BeyondClsError(
                f"{head} was trained on {recorded.get('encoder')!r} with {name} {theirs}, {store.where} is of "
                f"{ours['encoder']!r} with {own}, expected one encoder and preprocessing; extract these images as the "
                "training images were, or name heads of this encoder"
            )
