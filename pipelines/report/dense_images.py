"""Where the images of dense data sets are: those that are segmented, or whose objects are detected."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.report.pictures import opened

if TYPE_CHECKING:
    from PIL import Image

    from extract.datasets import ImageSet

OPTION = "--dense-data"  # of `beyondcls report`


@dataclass(frozen=True)
class DenseImages:
    """Test images of data sets.

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
        entry = (self.entries or {}).get(dataset, {})
        described = {"split": entry.get("test") or self.split, "form": entry.get("form")}
        if entry.get("classes"):
            described["classes"] = Path(str(entry["classes"]))
        pixels = {name: entry[name] for name in ("scale", "orientation") if entry.get(name) is not None}
        return opened(self._place(dataset), OPTION, pixels, **described)

    def _place(self, dataset: str) -> str | None:
        """The folder or address of a data set; None if it is not here."""
        if not self.data:
            return None
        place = f"{self.data.rstrip('/')}/{dataset}"
        return place if "://" in place or Path(place).exists() else None


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


def pictures_of(images: DenseImages, dataset: str, digest: str, ids: list[str]) -> "tuple[dict[str, Image.Image], str]":
    """Images by id; or none, and the reason.

    Args:
        digest: of the data set that was measured; other images are not shown.
    """
    image_set = images.opened(dataset)
    if isinstance(image_set, str):
        return {}, image_set
    from extract.datasets import DataError

    if image_set.digest != digest:
        return {}, (
            f"{image_set.source} holds other images ({image_set.digest}) than those that were measured ({digest}); "
            f"name those that were extracted with {OPTION}."
        )
    rows = {sample.id: row for row, sample in enumerate(image_set.samples)}
    try:
        return {one: image_set.image(rows[one]) for one in ids if one in rows}, ""
    except DataError as error:
        return {}, f"The images of {image_set.source} cannot be read: {error}"
