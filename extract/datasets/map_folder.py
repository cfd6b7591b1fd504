"""Any images with label maps: `images/SPLIT`, `labels/SPLIT` of PNGs of the same names, and a list of classes.

And with objects, if `instances/SPLIT.json` has any, as COCO writes them.
"""

from pathlib import Path

from extract.datasets.coco_masks import instances_in
from extract.datasets.example_maps import colour_png, index_png
from extract.datasets.form import Example, Published, pictures
from extract.datasets.gathering import images_in
from extract.datasets.image_set import ImageSet, read_class_names
from extract.datasets.label_codes import Codes, Indices, read_colours
from extract.datasets.label_maps import LabelMaps, segmented
from extract.datasets.listed import listed

SPLITS = ("train", "val", "test")
NAMES, COLOURS = "label-classes.txt", "label-colours.txt"
VOID_INDEX = 255


def map_folder(root: Path, split: str) -> ImageSet:
    """Images by path; a label map has the path of its image, with .png.

    With `label-classes.txt`, a name a line, values of label maps are indices from 0, and 255 is void. With
    `label-colours.txt`, they are colours: a line is `R G B NAME`, and the name `void` is none. Objects have classes of their
    own: the categories of `instances/SPLIT.json`, whose `file_name` is below `images/SPLIT`.

    Raises:
        DataError: neither list is there, or a file is damaged; or there are no images.
    """
    codes: Codes
    if (root / COLOURS).is_file():
        classes, codes = read_colours(root / COLOURS)
    else:
        classes = read_class_names(root / NAMES)
        codes = Indices.counted(len(classes), void=[VOID_INDEX])
    images, maps = root / "images" / split, root / "labels" / split
    by_stem = {Path(name).with_suffix("").as_posix(): name for name in images_in(images)}
    stems = sorted(by_stem.keys() | {Path(name).with_suffix("").as_posix() for name in images_in(maps)})
    samples = [listed(images, by_stem.get(stem, f"{stem}.png"), (), id_=stem) for stem in stems]
    objects = root / "instances" / f"{split}.json"
    truths = {"instances": instances_in(objects, samples)} if objects.is_file() else {}
    files = {stem: maps / f"{stem}.png" for stem in stems}
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
        "labels/train/a.png": colour_png([(128, 64, 128), (0, 0, 0), (70, 70, 70), (244, 35, 232)]),
        "labels/train/deep/b.png": colour_png([(70, 70, 70)]),
        "labels/test/c.png": index_png([0]),
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
