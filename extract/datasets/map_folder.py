"""Any images with label maps: `images/SPLIT`, `labels/SPLIT` of PNGs of the same names, and a list of classes.

And with objects, if `instances/SPLIT.json` has any, as COCO writes them.
"""

from pathlib import Path

from extract.datasets.coco import instances_in
from extract.datasets.form import Example, Published, pictures, stripes
from extract.datasets.image_set import ImageSet, read_class_names
from extract.datasets.label_maps import Codes, Indices, LabelMaps, paired, read_colours, segmented

SPLITS = ("train", "val", "test")
NAMES, COLOURS = "label-classes.txt", "label-colours.txt"


def map_folder(root: Path, split: str) -> ImageSet:
    """Images by path; a label map has the path of its image, with .png.

    With `label-classes.txt`, a name a line, values of label maps are indices from 0, and 255 is void. With
    `label-colours.txt`, they are colours: a line is `R G B NAME`, and the name `void` is none. Objects have classes of their
    own: the categories of `instances/SPLIT.json`, whose `file_name` is below `images/SPLIT`.
    """
    codes: Codes
    if (root / COLOURS).is_file():
        classes, codes = read_colours(root / COLOURS)
    else:
        classes = read_class_names(root / NAMES)
        codes = Indices.counted(len(classes))
    samples, files = paired(root / "images" / split, root / "labels" / split)
    objects = root / "instances" / f"{split}.json"
    truths = {"instances": instances_in(objects, samples)} if objects.is_file() else {}
    return segmented(str(root), samples, LabelMaps(classes, files, codes), truths=truths)


CART = '{"id": 7, "name": "cart"}'
OBJECTS = f"""{{
"images": [{{"id": 1, "file_name": "a.jpg"}}, {{"id": 2, "file_name": "deep/b.png"}}],
"annotations": [{{"image_id": 2, "category_id": 7, "bbox": [1, 2, 3, 4]}}],
"categories": [{CART}]
}}"""
EXAMPLE = Example(
    {
        COLOURS: "# of a game\n128 64 128 road\n0 0 0 Void\n70 70 70\tbrick wall\n244, 35, 232, road\n",
        "labels/train/a.png": stripes((128, 64, 128), (0, 0, 0), (70, 70, 70), (244, 35, 232)),
        "labels/train/deep/b.png": stripes((70, 70, 70)),
        "labels/test/c.png": stripes(0),
        "instances/train.json": OBJECTS,
        "instances/test.json": f'{{"images": [{{"id": 1, "file_name": "c.png"}}], "annotations": [], "categories": [{CART}]}}',
        **pictures("images/train", "a.jpg", "deep/b.png"),
        **pictures("images/test", "c.png"),
    },
    ("road", "brick wall"),
    {"train": {"a": ("road", "brick wall"), "deep/b": ("brick wall",)}, "test": {"c": ()}},
    truths=("segmentation", "instances"),
)
MAP_FOLDER = Published(map_folder, SPLITS, (NAMES, COLOURS), EXAMPLE)
