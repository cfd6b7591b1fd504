"""Cityscapes: `leftImg8bit/SPLIT/CITY/*_leftImg8bit.png` and `gtFine/SPLIT/CITY/*_gtFine_labelIds.png`."""

from pathlib import Path

from extract.datasets.example_maps import index_png
from extract.datasets.form import Example, Published, pictures
from extract.datasets.gathering import images_in
from extract.datasets.image_set import ImageSet
from extract.datasets.label_codes import Indices
from extract.datasets.label_maps import LabelMaps, segmented
from extract.datasets.listed import listed
from store.truths.reading import VOID

SPLITS = ("train", "val")  # the labels of test are secret
# The 19 classes that are scored, by their number in the files; 0 to 33 are known, and 255 is what a tool writes for -1.
CLASSES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light", 20: "traffic sign",
    21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train",
    32: "motorcycle", 33: "bicycle",
}  # fmt: skip
KNOWN = (*range(34), 255)
IMAGE, MAP = "_leftImg8bit.png", "_gtFine_labelIds.png"


def cityscapes(root: Path, split: str) -> ImageSet:
    """Images by city and name; the 19 classes that are scored, all others are void.

    Raises:
        DataError: there are no images.
    """
    images, maps = root / "leftImg8bit" / split, root / "gtFine" / split
    names = {name.removesuffix(IMAGE) for name in images_in(images) if name.endswith(IMAGE)}
    names |= {name.removesuffix(MAP) for name in images_in(maps) if name.endswith(MAP)}
    samples = [listed(images, f"{name}{IMAGE}", (), id_=name) for name in sorted(names)]
    labels = dict.fromkeys(KNOWN, VOID) | {number: label for label, number in enumerate(CLASSES)}
    files = {name: maps / f"{name}{MAP}" for name in names}
    return segmented(str(root), samples, LabelMaps(tuple(CLASSES.values()), files, Indices(labels)))


EXAMPLE = Example(
    {
        f"gtFine/train/aachen/aachen_000000_000019{MAP}": index_png([7, 0, 26, 33]),
        f"gtFine/val/ulm/ulm_000001_000019{MAP}": index_png([3, 255]),
        **pictures("leftImg8bit/train/aachen", f"aachen_000000_000019{IMAGE}"),
        **pictures("leftImg8bit/val/ulm", f"ulm_000001_000019{IMAGE}"),
    },
    tuple(CLASSES.values()),
    {"train": {"aachen/aachen_000000_000019": ("road", "car", "bicycle")}, "val": {"ulm/ulm_000001_000019": ()}},
    truths=("segmentation",),
)
CITYSCAPES = Published(cityscapes, SPLITS, ("gtFine/train", "gtFine/val"), EXAMPLE)
