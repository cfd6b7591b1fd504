"""Cityscapes: `leftImg8bit/SPLIT/CITY/*_leftImg8bit.png` and `gtFine/SPLIT/CITY/*_gtFine_labelIds.png`."""

from pathlib import Path

from extract.datasets.form import Example, Published, pictures, stripes
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Indices, LabelMaps, paired, segmented
from store.truths.reading import VOID

SPLITS = ("train", "val")  # the labels of test are secret
# The 19 classes that are scored, by their number in the files; 0 to 33 are known, and 255 is what a tool writes for -1.
CLASSES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light", 20: "traffic sign",
    21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train",
    32: "motorcycle", 33: "bicycle",
}  # fmt: skip
KNOWN = (*range(34), 255)
IMAGE, MAP = "_leftImg8bit", "_gtFine_labelIds"  # with which names end


def cityscapes(root: Path, split: str) -> ImageSet:
    """Images by city and name; the 19 classes that are scored, all others are void."""
    samples, files = paired(root / "leftImg8bit" / split, root / "gtFine" / split, marks=(IMAGE, MAP))
    labels = dict.fromkeys(KNOWN, VOID) | {number: label for label, number in enumerate(CLASSES)}
    return segmented(str(root), samples, LabelMaps(tuple(CLASSES.values()), files, Indices(labels)))


EXAMPLE = Example(
    {
        f"gtFine/train/aachen/aachen_000000_000019{MAP}.png": stripes(7, 0, 26, 33),
        f"gtFine/val/ulm/ulm_000001_000019{MAP}.png": stripes(3, 255),
        **pictures("leftImg8bit/train/aachen", f"aachen_000000_000019{IMAGE}.png"),
        **pictures("leftImg8bit/val/ulm", f"ulm_000001_000019{IMAGE}.png"),
    },
    tuple(CLASSES.values()),
    {"train": {"aachen/aachen_000000_000019": ("road", "car", "bicycle")}, "val": {"ulm/ulm_000001_000019": ()}},
    truths=("segmentation",),
)
CITYSCAPES = Published(cityscapes, SPLITS, ("gtFine/train", "gtFine/val"), EXAMPLE)
