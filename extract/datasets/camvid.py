"""CamVid as published with SegNet: folders `train`, `val`, `test` of images, and `trainannot`, … of label maps."""

from pathlib import Path

from extract.datasets.form import Example, Published, pictures, stripes
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Indices, LabelMaps, paired, segmented

CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
SPLITS = ("train", "val", "test")


def camvid(root: Path, split: str) -> ImageSet:
    """Images by name; 11 classes, index 11 is void."""
    samples, files = paired(root / split, root / f"{split}annot")
    return segmented(str(root), samples, LabelMaps(CLASSES, files, Indices.counted(len(CLASSES), void=[len(CLASSES)])))


EXAMPLE = Example(
    {
        "trainannot/0001.png": stripes(0, 3, 8),
        "testannot/0002.png": stripes(3, 11),
        "testannot/0003.png": stripes(11),
        **pictures("train", "0001.png"),
        **pictures("test", "0002.png", "0003.png"),
    },
    CLASSES,
    {"train": {"0001": ("sky", "road", "car")}, "test": {"0002": ("road",), "0003": ()}},
    truths=("segmentation",),
)
CAMVID = Published(camvid, SPLITS, tuple(f"{split}annot" for split in SPLITS), EXAMPLE)
