"""A tiny copy of each form of data set of this program, which shows its layout; importing it makes the contracts find them."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from beyondcls.testing.datasets import EXAMPLES
from extract.datasets import DATASETS, imagenet, lists, map_folders, webdataset_tars
from extract.datasets.cifar import PIXELS_NBYTES
from extract.datasets.form import Example, pictures

WIDTH, HEIGHT = 36, 40


def stripes(*values: int | tuple[int, int, int]) -> Callable[[], bytes]:
    """A label map of an example: a PNG of these indices, or colours, in vertical stripes."""

    def png() -> bytes:
        file, pixels = io.BytesIO(), np.array(values)
        column = np.broadcast_to(np.arange(WIDTH) * len(pixels) // WIDTH, (HEIGHT, WIDTH))
        Image.fromarray(pixels.astype(np.uint16 if pixels.max() > 255 else np.uint8)[column]).save(file, "png")
        return file.getvalue()

    return png


def matlab_file(name: str, rows: Sequence[Sequence[Any]], fields: Sequence[str] = ()) -> bytes:
    """A MATLAB file of an example: one variable of cells, or of structures with these fields."""
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {name: np.array(rows, [(field, object) for field in fields] if fields else object)})
    return file.getvalue()


MODULE = """
import numpy as np

PIXELS = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)

def images():
    items = [{"image": image, "label": label, "id": name} for image, label, name in zip(PIXELS, ("bee", "ape", "bee"), "bac")]
    return {"train": items[:2], "test": items[2:], "classes": ["ape", "bee"]}
"""


def npz_file() -> bytes:
    file = io.BytesIO()
    images = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)
    train = {"x_train": images[:2], "y_train": [1, 0], "ids_train": ["b", "a"]}
    np.savez(file, **train, x_test=images[2:], y_test=[1], ids_test=["c"], class_names=["ape", "bee"])
    return file.getvalue()


def parquet_file(shade: int) -> bytes:
    import pyarrow
    import pyarrow.parquet

    features = {"image": {"_type": "Image"}, "label": {"names": ["ape", "bee"], "_type": "ClassLabel"}}
    images = [{"bytes": b"P5 2 2 255\n" + bytes([shade + i] * 4), "path": None} for i in range(2)]
    table = pyarrow.table({"image": images, "label": [1, 0], "id": ["b", "a"]})
    metadata = {"huggingface": json.dumps({"info": {"features": {**features, "id": {"_type": "Value", "dtype": "string"}}}})}
    file = io.BytesIO()
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), file)
    return file.getvalue()


def example(
    files: Any, classes: Sequence[str], images: Mapping[str, Mapping[str, int | tuple[int, ...]]], **more: Any
) -> Example:
    """One whose images have classes by number."""

    def named(of_image: int | tuple[int, ...]) -> tuple[str, ...]:
        return tuple(classes[number] for number in (of_image if isinstance(of_image, tuple) else (of_image,)))

    by_split = {split: {id_: named(of_image) for id_, of_image in some.items()} for split, some in images.items()}
    return Example(files, tuple(classes), by_split, **more)


def cifar(form: str) -> Example:
    """The binary version, with one image a file."""
    layout: Any = DATASETS[form].open.__self__  # type: ignore[union-attr]
    classes = ("apple", "bear", "cat")
    contents: dict[str, str | bytes] = {f"{layout.binary}/{layout.names[0]}": "\n".join(classes)}
    images: dict[str, dict[str, int | tuple[int, ...]]] = {split: {} for split in layout.files}
    for split, files in layout.files.items():
        for i, file in enumerate(files):
            label, shade = (i + len(files)) % 3, 40 * len(contents)
            contents[f"{layout.binary}/{file}.bin"] = bytes([label] * layout.n_label_bytes + [shade] * PIXELS_NBYTES)
            images[split][f"{split}/{i:05d}"] = label
    return example(contents, classes, images)


COCO_SPLITS = ("train2017", "val2017")
COCO_OBJECTS = """{
"images": [
  {"id": 9, "file_name": "000000000009.jpg"},
  {"id": 3, "file_name": "000000000003.jpg"},
  {"id": 5, "file_name": "5.jpg"}],
"annotations": [
  {"image_id": 9, "category_id": 90, "bbox": [1.5, 2.0, 10.0, 20.0], "iscrowd": 0},
  {"image_id": 9, "category_id": 1, "bbox": [0, 0, 5, 0], "iscrowd": 1},
  {"image_id": 9, "category_id": 90, "bbox": [3, 3, 1, 1], "iscrowd": 0},
  {"image_id": 5, "category_id": 1, "bbox": [3, 3, 1, 1], "iscrowd": 0}],
"categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 13, "name": "stop sign"}]
}"""
PANOPTIC = """{
"images": [{"id": 9, "file_name": "000000000009.jpg"}, {"id": 3, "file_name": "000000000003.jpg"}],
"annotations": [
  {"image_id": 9, "file_name": "000000000009.png", "segments_info": [
    {"id": 258, "category_id": 184}, {"id": 65536, "category_id": 1}, {"id": 7, "category_id": 1}]},
  {"image_id": 3, "file_name": "000000000003.png", "segments_info": [{"id": 1, "category_id": 184}]}],
"categories": [{"id": 184, "name": "tree-merged"}, {"id": 1, "name": "person"}]
}"""
BLACK_FOOTED, LAYSAN = "001.Black_footed_Albatross", "002.Laysan_Albatross"
PETS = ("Abyssinian_1", "Abyssinian_2", "american_bulldog_1", "beagle_9")
CARS = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Audi TT RS Coupe 2012")
FIELDS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
TEST_ROWS = [(1, 2, 3, 4, 2, "00001.jpg")]
TRAIN_ROWS = [(39, 116, 569, 375, 3, "00001.jpg"), (5, 6, 30, 40, 1, "00002.jpg")]
UNMARKED = '{"id": 1, "file_name": "c.png"}'
CART = '{"id": 7, "name": "cart"}'
MAP_OBJECTS = f"""{{
"images": [{{"id": 1, "file_name": "a.jpg"}}, {{"id": 2, "file_name": "deep/b.png"}}],
"annotations": [{{"image_id": 2, "category_id": 7, "bbox": [1, 2, 3, 4]}}],
"categories": [{CART}]
}}"""
MARKS = {"airport": ("1\n0\n0\n", "0\n"), "animal": ("1\n0\n1\n", "1\n"), "beach": ("0\n0\n0\n", "1\n")}


def xml(*objects: str) -> str:
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>18</xmax><ymax>40</ymax></bndbox>"
    return f"<annotation>{''.join(f'<object><name>{name}</name>{box}</object>' for name in objects)}</annotation>"


def tar_file(members: Mapping[str, bytes]) -> bytes:
    """A tar, for examples."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


PPM = b"P6 2 2 255\n" + bytes(12)
ROOT = "VOCdevkit/VOC2012"
THREE: Any = {"train": {"b": 1, "a": 0}, "test": {"c": 1}}

EXAMPLES |= {
    "tars": example(
        {
            "train-000.tar": partial(tar_file, {"b.ppm": PPM, "b.cls": b"1", "a.ppm": PPM, "a.cls": b"0"}),
            "train-001.tar": partial(tar_file, {"c.ppm": PPM, "c.cls": b"1"}),
            webdataset_tars.CLASS_NAMES: "ape\nbee\n",
        },
        ("ape", "bee"),
        {"": {"b": 1, "a": 0, "c": 1}},
        listed=False,
    ),
    "folder": example(
        pictures("cat", "2.png") | pictures("bee", "deep/0.png") | pictures("ape", "1.png", "0.JPEG"),
        ("ape", "bee", "cat"),
        {"": {"ape/0": 0, "ape/1": 0, "bee/deep/0": 1, "cat/2": 2}},
        listed=False,
    ),
    "csv": example(
        {
            "images.csv": "label,id,path,other\ncat,1,a.jpg,x\nape,2,deep/b.jpg,y\ncat,3,c.jpg,\n",
            **pictures(".", "a.jpg", "deep/b.jpg", "c.jpg"),
        },
        ("ape", "cat"),
        {"": {"1": 1, "2": 0, "3": 1}},
        source="images.csv",
    ),
    "function": example({"images.py": MODULE}, ("ape", "bee"), THREE, source="images.py:images", listed=False),
    "npz": example({"arrays.npz": npz_file}, ("ape", "bee"), THREE, source="arrays.npz", listed=False),
    "tables": example(
        {f"data/{split}-00000-of-00001.parquet": partial(parquet_file, 40 * i) for i, split in enumerate(("train", "test"))},
        ("ape", "bee"),
        {split: {"b": 1, "a": 0} for split in ("train", "test")},
        listed=False,
    ),
    "cifar10": cifar("cifar10"),
    "cifar100": cifar("cifar100"),
    "coco": example(
        {f"annotations/instances_{split}.json": COCO_OBJECTS for split in COCO_SPLITS}
        | {f"{split}/{name}.jpg": None for split in COCO_SPLITS for name in ("000000000003", "000000000009", "5")},
        ("person", "stop sign", "toothbrush"),
        {split: {"000000000003": (), "5": 0, "000000000009": (0, 2)} for split in COCO_SPLITS},
        truths=("instances",),
    ),
    "cub": example(
        {
            "CUB_200_2011/images.txt": f"1 {BLACK_FOOTED}/a.jpg\n2 {BLACK_FOOTED}/b.jpg\n3 {LAYSAN}/c.jpg\n",
            "CUB_200_2011/image_class_labels.txt": "1 1\n2 1\n3 2\n",
            "CUB_200_2011/train_test_split.txt": "1 0\n2 1\n3 1\n",
            "CUB_200_2011/bounding_boxes.txt": "1 60.0 27.0 325.0 304.0\n2 1.0 2.0 3.0 4.0\n3 0.0 0.0 9.5 8.0\n",
            "CUB_200_2011/classes.txt": f"1 {BLACK_FOOTED}\n2 {LAYSAN}\n",
            **pictures("CUB_200_2011/images", f"{BLACK_FOOTED}/a.jpg", f"{BLACK_FOOTED}/b.jpg", f"{LAYSAN}/c.jpg"),
        },
        ("Black footed Albatross", "Laysan Albatross"),
        {"train": {f"{BLACK_FOOTED}/b": 0, f"{LAYSAN}/c": 1}, "test": {f"{BLACK_FOOTED}/a": 0}},
    ),
    "food101": example(
        {
            "food-101/meta/train.json": '{"waffles": ["waffles/7", "waffles/1"], "apple_pie": ["apple_pie/3"]}',
            "food-101/meta/test.json": '{"apple_pie": ["apple_pie/7", "apple_pie/1"], "waffles": ["waffles/3"]}',
            **pictures("food-101/images", *(f"{kind}/{i}.jpg" for kind in ("apple_pie", "waffles") for i in (7, 1, 3))),
        },
        ("apple_pie", "waffles"),
        {
            "train": {"waffles/7": 1, "waffles/1": 1, "apple_pie/3": 0},
            "test": {"apple_pie/7": 0, "apple_pie/1": 0, "waffles/3": 1},
        },
    ),
    "imagenet": example(
        {
            imagenet.MAPPING: "n01440764 tench, Tinca tinca\nn01443537 goldfish\n",
            "LOC_val_solution.csv": "ImageId,PredictionString\nval_2,n01443537 1 2 30 40 \nval_1,n01440764 5 6 7 8 \n",
            **pictures("train", "n01443537/n01443537_2.JPEG", "n01440764/n01440764_10026.JPEG", "n01440764/n01440764_9.JPEG"),
            **pictures("val", "val_1.JPEG", "val_2.JPEG"),
        },
        ("tench, Tinca tinca", "goldfish"),
        {"train": {"n01440764_10026": 0, "n01440764_9": 0, "n01443537_2": 1}, "val": {"val_1": 0, "val_2": 1}},
        listed=False,  # of train
    ),
    "nus-wide": example(
        {
            "ImageList/TrainImagelist.txt": "actor\\0001_2.jpg\nzoo\\0002_8.jpg \nzoo\\0001_9.jpg\n",
            "ImageList/TestImagelist.txt": "actor\\0002_3.jpg\n",
            "ConceptsList/Concepts81.txt": "airport\nanimal\nbeach\n",
            **{f"Groundtruth/TrainTestLabels/Labels_{concept}_Train.txt": marks for concept, (marks, _) in MARKS.items()},
            **{f"Groundtruth/TrainTestLabels/Labels_{concept}_Test.txt": marks for concept, (_, marks) in MARKS.items()},
            **pictures("Flickr", "actor/0001_2.jpg", "actor/0002_3.jpg", "zoo/0001_9.jpg", "zoo/0002_8.jpg"),
        },
        ("airport", "animal", "beach"),
        {"train": {"actor/0001_2": (0, 1), "zoo/0002_8": (), "zoo/0001_9": 1}, "test": {"actor/0002_3": (1, 2)}},
    ),
    "pets": example(
        {
            "oxford-iiit-pet/annotations/trainval.txt": "Abyssinian_1 1 1 1\namerican_bulldog_1 2 2 1\n",
            "oxford-iiit-pet/annotations/test.txt": "Abyssinian_2 1 1 1\n",
            **pictures("oxford-iiit-pet/images", *(f"{name}.jpg" for name in PETS)),
        },
        ("Abyssinian", "American Bulldog"),
        {"trainval": {"Abyssinian_1": 0, "american_bulldog_1": 1}, "test": {"Abyssinian_2": 0}},
    ),
    "stanford-cars": example(
        {
            "stanford_cars/devkit/cars_meta.mat": partial(matlab_file, "class_names", [CARS]),
            f"stanford_cars/{lists.CAR_LISTS['train']}": partial(matlab_file, "annotations", [TRAIN_ROWS], FIELDS),
            f"stanford_cars/{lists.CAR_LISTS['test']}": partial(matlab_file, "annotations", [TEST_ROWS], FIELDS),
            **pictures("stanford_cars", "cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg"),
        },
        CARS,
        {"train": {"00001": 2, "00002": 0}, "test": {"00001": 1}},
    ),
    "ade20k": example(
        {
            map_folders.ADE_NAMES: "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t0.1576\t11664\t1172\t1\twall\n"
            "2\t0.1072\t6046\t612\t1\tbuilding, edifice\n",
            "annotations/training/ADE_train_00000001.png": stripes(0, 2, 1),
            "annotations/validation/ADE_val_00000001.png": stripes(2, 1),
            **pictures("images", "training/ADE_train_00000001.jpg", "validation/ADE_val_00000001.jpg"),
        },
        ("wall", "building, edifice"),
        {"train": {"ADE_train_00000001": (0, 1)}, "val": {"ADE_val_00000001": (0, 1)}},
        truths=("segmentation",),
    ),
    "camvid": Example(
        {
            "trainannot/0001.png": stripes(0, 3, 8),
            "testannot/0002.png": stripes(3, 11),
            "testannot/0003.png": stripes(11),
            **pictures("train", "0001.png"),
            **pictures("test", "0002.png", "0003.png"),
        },
        map_folders.CAMVID_CLASSES,
        {"train": {"0001": ("sky", "road", "car")}, "test": {"0002": ("road",), "0003": ()}},
        truths=("segmentation",),
    ),
    "cityscapes": Example(
        {
            f"gtFine/train/aachen/aachen_000000_000019{map_folders.CITY_MAP}.png": stripes(7, 0, 26, 33),
            f"gtFine/val/ulm/ulm_000001_000019{map_folders.CITY_MAP}.png": stripes(3, 255),
            **pictures("leftImg8bit/train/aachen", f"aachen_000000_000019{map_folders.CITY_IMAGE}.png"),
            **pictures("leftImg8bit/val/ulm", f"ulm_000001_000019{map_folders.CITY_IMAGE}.png"),
        },
        tuple(map_folders.CITY_CLASSES.values()),
        {"train": {"aachen/aachen_000000_000019": ("road", "car", "bicycle")}, "val": {"ulm/ulm_000001_000019": ()}},
        truths=("segmentation",),
    ),
    "coco-panoptic": example(
        {
            name: content
            for split in COCO_SPLITS
            for name, content in {
                f"annotations/panoptic_{split}.json": PANOPTIC,
                f"annotations/panoptic_{split}/000000000003.png": stripes((1, 0, 0), (0, 0, 0)),
                f"annotations/panoptic_{split}/000000000009.png": stripes((2, 1, 0), (0, 0, 1), (7, 0, 0), (0, 0, 0)),
                **pictures(split, "000000000003.jpg", "000000000009.jpg"),
            }.items()
        },
        ("person", "tree-merged"),
        {split: {"000000000003": 1, "000000000009": (0, 1)} for split in COCO_SPLITS},
        truths=("segmentation",),
    ),
    "coco-stuff": Example(
        {
            map_folders.STUFF_NAMES: "0: unlabeled\n1: person\n2: bicycle\n3: sky-other\n",
            "stuffthingmaps/train2017/000000000009.png": stripes(2, 255, 0),
            "stuffthingmaps/val2017/000000000139.png": stripes(1, 2),
            **pictures("train2017", "000000000009.jpg"),
            **pictures("val2017", "000000000139.jpg"),
        },
        ("person", "bicycle", "sky-other"),
        {"train2017": {"000000000009": ("person", "sky-other")}, "val2017": {"000000000139": ("bicycle", "sky-other")}},
        truths=("segmentation",),
    ),
    "label-maps": Example(
        {
            map_folders.COLOURS: "# of a game\n128 64 128 road\n0 0 0 Void\n70 70 70\tbrick wall\n244, 35, 232, road\n",
            "labels/train/a.png": stripes((128, 64, 128), (0, 0, 0), (70, 70, 70), (244, 35, 232)),
            "labels/train/deep/b.png": stripes((70, 70, 70)),
            "labels/test/c.png": stripes(0),
            "instances/train.json": MAP_OBJECTS,
            "instances/test.json": f'{{"images": [{UNMARKED}], "annotations": [], "categories": [{CART}]}}',
            **pictures("images/train", "a.jpg", "deep/b.png"),
            **pictures("images/test", "c.png"),
        },
        ("road", "brick wall"),
        {"train": {"a": ("road", "brick wall"), "deep/b": ("brick wall",)}, "test": {"c": ()}},
        truths=("segmentation", "instances"),
    ),
    "voc": Example(
        {
            f"{ROOT}/ImageSets/Segmentation/train.txt": "2007_000032\n2007_000039\n",
            f"{ROOT}/ImageSets/Segmentation/val.txt": "2007_000033\n",
            f"{ROOT}/SegmentationClass/2007_000032.png": stripes(1, 255, 15, 15, 0),
            f"{ROOT}/SegmentationObject/2007_000032.png": stripes(1, 255, 2, 3, 0),
            f"{ROOT}/Annotations/2007_000032.xml": xml("aeroplane", "person", "person"),
            f"{ROOT}/SegmentationClass/2007_000039.png": stripes(0),
            f"{ROOT}/SegmentationObject/2007_000039.png": stripes(0),
            f"{ROOT}/Annotations/2007_000039.xml": xml(),
            f"{ROOT}/SegmentationClass/2007_000033.png": stripes(0, 20, 8),
            f"{ROOT}/SegmentationObject/2007_000033.png": stripes(0, 1, 2),
            f"{ROOT}/Annotations/2007_000033.xml": xml("tvmonitor", "cat"),
            **pictures(f"{ROOT}/JPEGImages", "2007_000032.jpg", "2007_000033.jpg", "2007_000039.jpg", "2007_000121.jpg"),
        },
        map_folders.OBJECTS,
        {"train": {"2007_000032": ("aeroplane", "person"), "2007_000039": ()}, "val": {"2007_000033": ("cat", "tvmonitor")}},
        truths=("segmentation", "instances"),
    ),
}
