"""CamVid as published with SegNet: folders `train`, `val`, `test` of images, and `trainannot`, … of label maps."""

from pathlib import Path

from extract.datasets.example_maps import index_png
from extract.datasets.form import Example, Published, pictures
from extract.datasets.gathering import images_in
from extract.datasets.image_set import ImageSet
from extract.datasets.label_codes import Indices
from extract.datasets.label_maps import LabelMaps, segmented
from extract.datasets.listed import listed

CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
VOID_INDEX = 11
SPLITS = ("train", "val", "test")


def camvid(root: Path, split: str) -> ImageSet:
    """Images by name; 11 classes, index 11 is void.

    Raises:
        DataError: there are no images.
    """
    folder, maps = root / split, root / f"{split}annot"
    names = sorted(set(images_in(folder)) | set(images_in(maps)))
    samples = [listed(folder, name, ()) for name in names]
    files = {sample.id: maps / name for sample, name in zip(samples, names, strict=True)}
    return segmented(str(root), samples, LabelMaps(CLASSES, files, Indices.counted(len(CLASSES), void=[VOID_INDEX])))


EXAMPLE = Example(
    {
        "trainannot/0001.png": index_png([0, 3, 8]),
        "testannot/0002.png": index_png([3, 11]),
        "testannot/0003.png": index_png([11]),
        **pictures("train", "0001.png"),
        **pictures("test", "0002.png", "0003.png"),
    },
    CLASSES,
    {"train": {"0001": ("sky", "road", "car")}, "test": {"0002": ("road",), "0003": ()}},
    truths=("segmentation",),
)
CAMVID = Published(camvid, SPLITS, tuple(f"{split}annot" for split in SPLITS), EXAMPLE)
