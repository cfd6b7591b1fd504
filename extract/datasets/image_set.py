"""A list of images in fixed order, each a range of bytes in a file."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xxhash
from jaxtyping import UInt8
from PIL import Image

from extract.datasets.gathering import LeftOut
from extract.datasets.index import Index, settled_states
from extract.datasets.pixels import IMAGE_EXTENSIONS, Picture, Pixels
from extract.datasets.reading import CHANGED, Damage, State, decode_bytes
from extract.datasets.sample import Box, DataError, Sample, Samples
from extract.datasets.truths import Truths, columns_of, turned_boxes
from store import BeyondClsError
from store.shown import first_names, html_table
from store.truths.reading import TruthColumns

T = TypeVar("T")
KEPT = ("source", "classes", "problems", "multilabel")  # of a set, in its index
NOT_UTF8 = re.compile("[\udc80-\udcff]")  # Python's surrogates for such bytes in names of files


class ImageSet:
    """Samples in the order of their rows, and what is wrong with them.

    Args:
        source: what the user named.
        samples: in the order of their rows.
        classes: names of the classes by label, if known; a multi-label set must know them. Without, labels that are identifiers
            rather than class numbers (`are_identifiers`) become names.
        problems: of the whole set (a cut tar), apart from those of single samples.
        multilabel: whether an image may have no label, or several.
        resources: what must live as long as the set, such as a folder of temporary files.
        truths: label maps and instances that can be read, by name.
        usual_truths: those that extraction keeps unless it is asked otherwise; all by default.
        left_out: what of the source is not among the samples.
        index: that has kept the samples of this set, which was checked then; None: it is checked, and gets a new one.
    """

    def __init__(
        self,
        source: str,
        samples: Iterable[Sample],
        classes: Sequence[str] | None = None,
        problems: Sequence[str] = (),
        multilabel: bool = False,
        resources: object = None,
        truths: Mapping[str, Truths] | None = None,
        usual_truths: Sequence[str] | None = None,
        left_out: LeftOut | None = None,
        index: Index | None = None,
    ):
        self.truths = dict(truths or {})
        self.usual_truths = tuple(self.truths if usual_truths is None else usual_truths)
        self._columns: dict[str, TruthColumns] = {}
        self.left_out, self.pixels, self.multilabel, self._resources = left_out or LeftOut(), Pixels(), multilabel, resources
        self.source, self.samples, self.classes, self.problems = source, Samples.of(samples), classes, list(problems)
        self._rows: list[int] | None = None  # of the index
        if index is not None:
            self.index = index
            return
        if classes is None and not multilabel:
            self.samples, self.classes = self.samples.numbered()
        self.index = Index(self.samples)
        if not self.samples and not self.problems:
            beside = f"; left out: {self.left_out}" if self.left_out else ""
            raise DataError(f"{source} has no images; expected {', '.join(f'.{name}' for name in IMAGE_EXTENSIONS)}{beside}")
        if multilabel and classes is None:
            raise DataError(f"{source} has several labels an image, but no names of classes; give them with --classes")
        for name in (*self.samples.ids, *(classes or ())):
            if NOT_UTF8.search(name):
                raise DataError(
                    f"{name!r} in {source} is not UTF-8, as names of images and classes have to be; rename it, e.g. with "
                    "`convmv -f latin1 -t utf8 --notest`"
                )
        if len(set(self.samples.ids)) < len(self.samples):
            rows: dict[str, int] = {}
            row, id_ = next((row, id_) for row, id_ in enumerate(self.samples.ids) if rows.setdefault(id_, row) != row)
            files = f"{self.samples[rows[id_]].file} and {self.samples[row].file}"
            raise DataError(f"id {id_!r} appears twice, in {files}; ids must be unique")
        labels, n = self.samples.labels, None if self.classes is None else len(self.classes)
        wrong = np.flatnonzero((labels < 0) | (labels >= (np.inf if n is None else n)))
        if len(wrong):
            label = int(labels[wrong[0]])
            sample = self.samples[int(np.searchsorted(self.samples.label_ends, wrong[0], side="right"))]
            above, below = (f", but there are {n} class names", "") if label >= 0 else ("", ", and None stands for no label")
            raise DataError(f"{sample} has label {label}{above}; labels count from 0{below}")
        assert multilabel or (np.diff(self.samples.label_ends, prepend=0) == self.samples.has_labels).all(), source

    @classmethod
    def of_index(cls, index: Index) -> "ImageSet":
        """The set whose list an index has kept; it is sound, as it was checked then."""
        about = {name: index.attributes[name] for name in KEPT} | {"left_out": LeftOut(index.attributes["left_out"])}
        return cls(samples=index.samples, index=index, **about)

    def keep_in(self, path: Path, sources: Mapping[str, State] | None, earlier: Index | None) -> None:
        """Keep digests in an index, and the list itself if its sources are known; those of an earlier one are reused."""
        self.index.path, self.classes = path, None if self.classes is None else list(self.classes)
        self.index.attributes = {name: getattr(self, name) for name in KEPT} | {"left_out": self.left_out.described}
        self.index.sources = None if sources is None or self.truths or self.samples.others else settled_states(sources)
        if earlier is not None:
            self.index.take_over(earlier)
            if self.index.known.all():
                self.index.write()

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"ImageSet({self.source!r}, {len(self)} images)"

    def _repr_html_(self) -> str:
        problems = self.all_problems()
        n_unlabelled = int((~self.samples.has_labels).sum())
        return html_table(
            f"ImageSet {self.source}",
            {
                "images": f"{len(self):,}" + (f", {n_unlabelled:,} of them without a label" if n_unlabelled else ""),
                "classes": first_names(self.classes) + (", several an image" if self.multilabel else ""),
                "truths": ", ".join(self.truths) or "–",
                "problems": f"{len(problems)}, first: {problems[0]}" if problems else "none",
            },
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without its resources, which stay those of the process that opened it, and without truths that were read."""
        return {**self.__dict__, "_resources": None, "_columns": {}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self.pixels.raise_limit()

    def with_pixels(self, pixels: Pixels) -> "ImageSet":
        """These images, whose files are decoded in another way."""
        if pixels == self.pixels:
            return self
        pixels.raise_limit()
        images = copy.copy(self)
        images.pixels, images._columns = pixels, {}
        images.__dict__.pop("digest", None)
        return images

    def boxes(self, row: int) -> Sequence[Box]:
        """Boxes of an image, in pixels of the image as it is decoded."""
        return turned_boxes(self.samples[row], self.pixels)

    @cached_property
    def n_boxes(self) -> int:
        """Boxes of the image that has most; 0 for a set without boxes."""
        return int(np.diff(self.samples.box_ends, prepend=0).max(initial=0))

    @cached_property
    def class_counts(self) -> list[tuple[str, int]]:
        """Name, or number where classes have no names, and images of each class, in order of labels."""
        counts = np.bincount(self.samples.labels, minlength=len(self.classes or ()))
        names = range(len(counts)) if self.classes is None else self.classes
        return [(str(name), n) for name, n in zip(names, counts.tolist(), strict=True)]

    @property
    def is_unlabelled(self) -> bool:
        """Whether no image has a label, which extraction does not need and a probe does."""
        return not self.multilabel and not self.samples.has_labels.any()

    def check_files(self) -> None:
        """Look at the files of a large set, of which those that are decoded are compared with their digests, and no others;
        BeyondClsError where some have changed since they were listed.
        """
        if self.index.is_outdated():
            self.index.forget()
            raise BeyondClsError(f"files of {self.source} have changed since they were listed; give the same command again")

    def all_problems(self) -> list[str]:
        """What is wrong, one line each; empty for a sound set."""
        samples = (self.samples[row] for row in sorted(self.samples.problems))
        return [*self.problems, *(f"{sample}: {sample.problem}" for sample in samples)]

    @cached_property
    def digest(self) -> str:
        """XXH3-128 over id, labels, boxes and bytes of every image in order: equal for a folder and tars of the same images.

        How pixels are scaled or turned counts, too: what is drawn over a picture must fit it.
        """
        if self._rows is not None:
            return self.digest_of(len(self))
        known = self.index.attributes.setdefault("digests", {}) if self.index.known.all() else {}
        if self.pixels.described not in known:
            digest = self.digest_of(len(self))
            self.index.attributes["digests"] = known | {self.pixels.described: digest}
            self.index.write()
            return digest
        return str(known[self.pixels.described])

    @cached_property
    def image_digests(self) -> UInt8[np.ndarray, "N 16"]:
        """XXH3-128 of the bytes of each image."""
        return self.index.digests(self._rows)

    def digest_of(self, n: int) -> str:
        """The digest that a set of the first `n` images has."""
        digest, samples = xxhash.xxh3_128(), self.samples
        if self.pixels.described:
            digest.update(f"pixels\0{self.pixels.described}\0".encode())
        if self.multilabel:
            digest.update(f"multilabel\0{len(self.classes or ())}\0".encode())
        digests, labels, begin, has_boxes = self.image_digests, samples.labels.tolist(), 0, np.diff(samples.box_ends, prepend=0)
        columns = (samples.ids, samples.size.tolist(), samples.label_ends.tolist(), has_boxes.tolist())
        for row, (id_, size, end, has_box) in zip(range(n), zip(*columns, strict=True), strict=False):
            of_image, begin = labels[begin:end], end
            described = f"{sorted(of_image)}" if self.multilabel else of_image[0] if of_image else None
            digest.update(f"{id_}\0{described}\0{size}\0".encode())
            if has_box:
                digest.update(f"{[(*map(float, box[:4]), box.label) for box in samples[row].boxes]}\0".encode())
            digest.update(digests[row].tobytes())
        return digest.hexdigest()

    def part(self, rows: Sequence[int]) -> "ImageSet":
        """A set of some of the images, in the order of `rows`."""
        part = copy.copy(self)
        part.problems, part.left_out, part._columns = [], LeftOut(), {}
        part.samples = Samples.of(map(self.samples.__getitem__, rows))
        part._rows = list(rows) if self._rows is None else [self._rows[row] for row in rows]
        for name in ("n_boxes", "class_counts", "digest", "image_digests"):
            part.__dict__.pop(name, None)
        return part

    def truth_columns(self, name: str) -> TruthColumns:
        """Truths of all images, as a store keeps them; read once.

        Raises:
            DataError: some are damaged, or do not fit their images.
        """
        if name not in self._columns:
            self._columns[name] = columns_of(name, self.truths[name], self.samples, self.pixels)
        return self._columns[name]

    def picture(self, row: int, held: ExitStack | None = None) -> Picture:
        """As `image`, but a plain JPEG may be a `Raster`, which is decoded faster; PyTorch cuts either."""
        return self._decoded(row, partial(self.pixels.picture, held=held))

    def image(self, row: int, held: ExitStack | None = None) -> Image.Image:
        """A decoded image, RGB, as `pixels` says; the first frame of one that has several. `held`: as for `Pixels.decoded`.

        Raises:
            DataError: its bytes are not a whole image; the message names id and file.
            BeyondClsError: they cannot be read, or memory does not suffice, which says nothing about the image; or they are
                not those whose digest is known.
        """
        return self._decoded(row, partial(self.pixels.decoded, held=held))

    def _decoded(self, row: int, decode: Callable[[bytes], T]) -> T:
        sample = self.samples[row]
        encoded, of_index = sample.read(), row if self._rows is None else self._rows[row]
        if self.index.known[of_index] and xxhash.xxh3_128_digest(encoded) != self.index.digest[of_index].tobytes():
            self.index.forget(of_index)
            raise BeyondClsError(f"{sample}: {CHANGED}")
        try:
            return decode_bytes(decode, encoded, str(sample))
        except Damage as error:
            raise DataError(f"{sample} cannot be decoded: {error}") from error
