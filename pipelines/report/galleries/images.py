"""The images that galleries are drawn over: where they are, and whether they are those that were measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store import BeyondClsError

if TYPE_CHECKING:
    from PIL import Image

    from extract.datasets import ImageSet

DENSE = "--dense-data"  # of `beyondcls report`


@dataclass(frozen=True)
class DenseImages:
    """Test images of data sets that are segmented, or whose objects are detected.

    Attributes:
        data: folder or address that holds a folder for each data set; None if there is none.
        entries: by data set: split (`test`), form and classes, as `open_images` takes them, scale and orientation.
        split: of data sets whose entry has none; None for those that have no splits.
    """

    data: str | None = None
    entries: Mapping[str, Mapping[str, Any]] | None = None
    split: str | None = "test"

    def opened(self, dataset: str) -> "ImageSet | str":
        """The images of a data set; or a sentence on why they are missing."""
        place = f"{self.data.rstrip('/')}/{dataset}" if self.data else None
        if place and "://" not in place and not Path(place).exists():
            place = None
        entry = (self.entries or {}).get(dataset, {})
        return open_examples(place, DENSE, **describe_test_images(entry, self.split))


def describe_test_images(entry: Mapping[str, Any], split: str | None, folder: Path = Path()) -> dict[str, Any]:
    """How test images of an entry of params.yaml are opened; `split` without its own, names of classes below `folder`."""
    return {
        "split": entry.get("test") or split,
        "form": entry.get("form"),
        "classes": folder / str(entry["classes"]) if entry.get("classes") else None,
        "pixels": {name: entry[name] for name in ("scale", "orientation") if entry.get(name) is not None},
    }


def of_params(folder: Path, params: Mapping[str, Any]) -> DenseImages:
    """What the section `dense` of params.yaml names, relative to the folder of a project; nothing where there is none."""
    dense = params.get("dense")
    if not isinstance(dense, Mapping) or not dense.get("data"):
        return DenseImages()
    data, datasets = str(dense["data"]), dense.get("datasets")
    entries = {str(name): dict(entry or {}) for name, entry in datasets.items()} if isinstance(datasets, Mapping) else {}
    for entry in entries.values():
        if entry.get("classes"):
            entry["classes"] = folder / str(entry["classes"])
    return DenseImages(data if "://" in data else str(folder / data), entries)


def open_examples(
    data: str | None, option: str = "--data", pixels: Mapping[str, Any] | None = None, **described: Any
) -> "ImageSet | str":
    """Images to draw over; or a sentence on why they are missing.

    Args:
        pixels: scale and orientation with which they were extracted, if not the usual ones.
        described: split, form and classes, as `open_images` takes them.
        option: of the command that names the images, for the sentence.
    """
    if data is None:
        return f"No images were named, or those of params.yaml are not here; name those that were extracted with {option}."
    try:
        from extract.datasets import form_of, open_images
        from extract.datasets.pixels import Pixels
    except ModuleNotFoundError as error:
        return f"Images cannot be read: {error}; install beyondcls[extract]."
    try:
        # What is drawn over has the digest of what was measured, so whatever its extraction allowed is allowed here.
        form = described.get("form") or form_of(data, described.get("split"))
        images = open_images(data, **described, allow_left_out=True, allow_outside=form == "csv")
        images = images.with_pixels(Pixels.of(pixels or {}))
        problems = images.all_problems()
    except BeyondClsError as error:
        return f"The images of {data} cannot be read: {error}"
    if problems:
        return f"{data} has {len(problems)} problem(s), so it is not certain which map is of which image: {problems[0]}"
    return images


def by_id(images: "ImageSet | str", option: str, digest: str, ids: Sequence[str]) -> "tuple[dict[str, Image.Image], str]":
    """Images by id; or none, and the reason.

    Args:
        images: as `open_examples` with this `option`.
        digest: of the data set that was measured; other images are not shown.
    """
    if isinstance(images, str):
        return {}, images
    from extract.datasets import DataError

    if images.digest != digest:
        return {}, (
            f"{images.source} holds other images ({images.digest}) than those that were measured ({digest}); "
            f"name those that were extracted with {option}."
        )
    rows = {sample.id: row for row, sample in enumerate(images.samples)}
    try:
        return {one: images.image(rows[one]) for one in ids if one in rows}, ""
    except DataError as error:
        return {}, f"The images of {images.source} cannot be read: {error}"
