"""A list of images in fixed order, each a range of bytes in a file."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jaxtyping import UInt8
from PIL import Image

from extract.datasets.remote import RemoteFile
from extract.datasets.sample import IMAGE_EXTENSIONS, DataError, Sample
from extract.datasets.truths import Truths, columns_of
from store.html_table import first_names, html_table
from store.truths.columns import TruthColumns

NOT_UTF8 = re.compile("[\udc80-\udcff]")  # Python's surrogates for such bytes in names of files


def read_class_names(file: Path | RemoteFile) -> list[str]:
    """Names of the classes in the order of the labels, one a line; empty lines do not count.

    Raises:
        DataError: it is not text.
    """
    try:
        return [line.strip() for line in file.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start}); write the names again") from error


class ImageSet:
    """Samples in the order of their rows, and what is wrong with them.

    Args:
        source: what the user named.
        samples: in the order of their rows.
        classes: names of the classes by label, if known; a multi-label set must know them.
        problems: of the whole set (a cut tar), beside those of single samples.
        multilabel: whether an image may have no label, or several.
        resources: what must live as long as the set, such as a folder of temporary files.
        truths: label maps and instances that can be read, by name.
        usual_truths: those that extraction keeps unless it is asked otherwise; all by default.
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
    ):
        self.truths = dict(truths or {})
        self.usual_truths = tuple(self.truths if usual_truths is None else usual_truths)
        self._columns: dict[str, TruthColumns] = {}
        self.source, self.samples, self.classes, self.problems = source, list(samples), classes, list(problems)
        self.multilabel, self._resources = multilabel, resources
        if not self.samples and not self.problems:
            raise DataError(f"{source} has no images; expected {', '.join(f'.{name}' for name in IMAGE_EXTENSIONS)}")
        if multilabel and classes is None:
            raise DataError(f"{source} has several labels an image, but no names of classes; give them with --classes")
        for name in (*(sample.id for sample in self.samples), *(classes or ())):
            if NOT_UTF8.search(name):
                raise DataError(
                    f"{name!r} in {source} is not UTF-8, as names of images and classes have to be; rename it, e.g. with "
                    "`convmv -f latin1 -t utf8 --notest`"
                )
        by_id: dict[str, Sample] = {}
        for sample in self.samples:
            if sample.id in by_id:
                raise DataError(
                    f"id {sample.id!r} appears twice, in {by_id[sample.id].file} and {sample.file}; ids must be unique"
                )
            by_id[sample.id] = sample
            highest = max(sample.labels or (), default=0)
            if classes is not None and highest >= len(classes):
                raise DataError(f"{sample} has label {highest}, but there are {len(classes)} class names; labels count from 0")
            assert multilabel or sample.labels is None or len(sample.labels) == 1, sample

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"ImageSet({self.source!r}, {len(self)} images)"

    def _repr_html_(self) -> str:
        """The set as a table, in notebooks."""
        problems = self.all_problems()
        n_unlabelled = sum(sample.labels is None for sample in self.samples)
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

    @cached_property
    def n_boxes(self) -> int:
        """Boxes of the image that has most; 0 for a set without boxes."""
        return max((len(sample.boxes) for sample in self.samples), default=0)

    def all_problems(self) -> list[str]:
        """What is wrong, one line each; empty for a sound set."""
        return [*self.problems, *(f"{s}: {s.problem}" for s in self.samples if s.problem)]

    @cached_property
    def digest(self) -> str:
        """XXH3-128 over id, labels, boxes and bytes of every image in order: equal for a folder and tars of the same images."""
        return self.digest_of(len(self))

    @cached_property
    def image_digests(self) -> UInt8[np.ndarray, "N 16"]:
        """XXH3-128 of the bytes of each image."""
        digests = b"".join(sample.digest or xxhash.xxh3_128_digest(sample.read()) for sample in self.samples)
        return np.frombuffer(digests, np.uint8).reshape(-1, 16)

    def digest_of(self, n: int) -> str:
        """The digest that a set of the first `n` images has."""
        digest = xxhash.xxh3_128()
        if self.multilabel:
            digest.update(f"multilabel\0{len(self.classes or ())}\0".encode())
        for sample, image_digest in zip(self.samples[:n], self.image_digests, strict=False):
            labels = f"{sorted(sample.labels or ())}" if self.multilabel else sample.label
            digest.update(f"{sample.id}\0{labels}\0{sample.size}\0".encode())
            if sample.boxes:
                digest.update(f"{[(*map(float, box[:4]), box.label) for box in sample.boxes]}\0".encode())
            digest.update(image_digest.tobytes())
        return digest.hexdigest()

    def part(self, rows: Sequence[int]) -> "ImageSet":
        """A set of some of the images, in the order of `rows`."""
        samples = [self.samples[row] for row in rows]
        return ImageSet(
            self.source,
            samples,
            self.classes,
            multilabel=self.multilabel,
            resources=self._resources,
            truths=self.truths,
            usual_truths=self.usual_truths,
        )

    def truth_columns(self, name: str) -> TruthColumns:
        """Truths of all images, as a store keeps them; read once.

        Raises:
            DataError: some are damaged, or do not fit their images.
        """
        if name not in self._columns:
            self._columns[name] = columns_of(name, self.truths[name], self.samples)
        return self._columns[name]

    def image(self, row: int) -> Image.Image:
        """A decoded image, RGB; the first frame of one that has several.

        Raises:
            DataError: its bytes are not a whole image; the message names id and file.
            BeyondClsError: a remote place does not return them, which says nothing about the image.
        """
        sample = self.samples[row]
        remote = sample.read() if isinstance(sample.file, RemoteFile) else None
        try:
            image = Image.open(io.BytesIO(sample.read() if remote is None else remote))
            image.load()
            if image.mode == "F" or (image.mode.startswith("I") and image.getextrema()[1] > 255):  # type: ignore[operator]
                raise ValueError(
                    f"its values (PIL's mode {image.mode}) need more than 8 bits, and would be cut to white; scale them"
                )
            return image.convert("RGB")
        except Exception as error:  # PIL raises many kinds; each becomes a message that names the file
            raise DataError(f"{sample} cannot be decoded: {error}") from error
