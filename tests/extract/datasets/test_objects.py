"""The same pictures from whatever a program, a file or a function has them in: equal pixels and labels."""

import io
import json
import pickle
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from extract.datasets import Box, DataError, ImageSet, open_images
from extract.datasets.pixels import Pixels
from store import BeyondClsError
from store.errors import BeyondClsWarning
from tests.extract.datasets.test_pixels import saved
from tests.extract.pictures import picture, write_file, write_text

N, NAMES = 12, ("ape", "bee", "cat")
PNGS = [picture(seed) for seed in range(N)]
PICTURES = [Image.open(io.BytesIO(png)).convert("RGB") for png in PNGS]
PIXELS = np.stack([np.asarray(one) for one in PICTURES])  # [N, 40, 36, 3]
LABELS = np.arange(N) % 3
IDS = [f"{NAMES[i % 3]}/{i:02d}" for i in range(N)]  # as in a folder
ORDER = sorted(range(N), key=IDS.__getitem__)


class Pictures(Dataset):
    def __init__(self, of: Callable[[int], Any], n: int = N):
        self.of, self.n, self.classes = of, n, list(NAMES)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: int) -> Any:
        return self.of(row)


class Ordered(Pictures):
    """As a folder, by class."""

    def __init__(self, make: Callable[[int], Any]):
        super().__init__(lambda row: {"image": make(ORDER[row]), "label": ORDER[row] % 3, "id": IDS[ORDER[row]]})


IMAGE, CLASSES = {"_type": "Image"}, {"_type": "ClassLabel", "names": list(NAMES)}


class Features(dict):
    def to_dict(self) -> dict[str, Any]:
        return {"picture": IMAGE, "label": CLASSES, "id": {"_type": "Value"}}


class HuggingFace:
    """A dataset of Hugging Face, as far as it is used."""

    format = {"type": None}  # noqa: RUF012

    def __init__(self, decode: bool = True):
        self.features = Features(picture=SimpleNamespace(decode=decode), label=None, id=None)

    def cast_column(self, column: str, feature: SimpleNamespace) -> "HuggingFace":
        assert column == "picture"
        return HuggingFace(feature.decode)

    def with_format(self, form: None) -> "HuggingFace":
        return self

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> dict[str, Any]:
        i = ORDER[row]
        image = PICTURES[i] if self.features["picture"].decode else {"bytes": PNGS[i], "path": "x.png"}
        return {"picture": image, "label": i % 3, "id": IDS[i]}


def table(columns: dict[str, Any], **features: object) -> Any:
    made = pytest.importorskip("pyarrow").table(columns)
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def rows_of(numbers: list[int]) -> Any:
    images = [{"bytes": PNGS[i], "path": "x.png"} for i in numbers]
    columns = {"image": images, "label": [i % 3 for i in numbers], "id": [IDS[i] for i in numbers]}
    return table(columns, image=IMAGE, label=CLASSES, id={})


def of_parquet(folder: Path) -> Any:
    from pyarrow import parquet

    for part, rows in enumerate((ORDER[:5], ORDER[5:])):
        parquet.write_table(rows_of(rows), folder / f"train-0000{part}-of-00002.parquet", row_group_size=2)
    return str(folder)


def of_arrow(folder: Path) -> Any:
    rows = rows_of(ORDER)
    from pyarrow import ipc

    with ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), rows.schema) as stream:
        stream.write_table(rows, max_chunksize=5)
    return str(folder)


def of_npz(folder: Path) -> Any:
    ids = [IDS[i] for i in ORDER]
    np.savez_compressed(folder / "a.npz", images=PIXELS[ORDER], labels=LABELS[ORDER][:, None], ids=ids, class_names=NAMES)
    return str(folder / "a.npz")


def of_function(folder: Path) -> Any:
    text = "import numpy as np", "def make():", f"    return dict(np.load({of_npz(folder)!r}))"
    return f"{write_text(folder / 'mine.py', *text)}:make"


def arrays(**changes: Any) -> dict[str, Any]:
    given = {"images": PIXELS[ORDER], "labels": LABELS[ORDER], "ids": [IDS[i] for i in ORDER], "classes": NAMES}
    return given | {name: change(given[name]) for name, change in changes.items()}


FORMS: dict[str, Callable[[Path], Any]] = {
    "pictures": lambda _: Ordered(PICTURES.__getitem__),
    "arrays of a Dataset": lambda _: Ordered(PIXELS.__getitem__),
    "tensors": lambda _: Ordered(lambda i: torch.from_numpy(PIXELS[i]).permute(2, 0, 1)),
    "bytes": lambda _: Ordered(PNGS.__getitem__),
    "paths": lambda folder: Ordered(lambda i: write_file(folder / f"{i}.png", PNGS[i])),
    "a DataLoader": lambda _: DataLoader(Ordered(PICTURES.__getitem__), batch_size=5, shuffle=True),
    "Hugging Face": lambda _: HuggingFace(),
    "arrays": lambda _: arrays(),
    "channels first": lambda _: arrays(images=lambda images: images.transpose(0, 3, 1, 2)),
    "tensor": lambda _: arrays(images=lambda images: torch.from_numpy(images).permute(0, 3, 1, 2), labels=torch.from_numpy),
    "names": lambda _: {"images": arrays()["images"], "labels": [NAMES[i] for i in arrays()["labels"]], "ids": arrays()["ids"]},
    ".npz": of_npz,
    ".parquet": of_parquet,
    "Arrow": of_arrow,
    "a function": of_function,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    place = tmp_path_factory.mktemp("folder")
    for name, png in zip(IDS, PNGS, strict=True):
        write_file(place / f"{name}.png", png)
    return open_images(str(place))


@pytest.mark.filterwarnings("ignore::store.errors.BeyondClsWarning")
@pytest.mark.parametrize("form", FORMS)
def test_equal_labels_ids_and_pixels(form: str, folder: ImageSet, tmp_path: Path) -> None:
    images = open_images(FORMS[form](tmp_path))
    known, given = ([(sample.id, sample.labels) for sample in some.samples] for some in (folder, images))
    assert (given, images.classes, images.all_problems()) == (known, list(NAMES), [])
    assert all(len(sample.read()) == sample.size for sample in images.samples)
    for row in range(N):
        np.testing.assert_array_equal(images.image(row), folder.image(row))
    if form in (".parquet", "Arrow", "Hugging Face", "bytes", "paths"):
        assert images.digest == folder.digest, "of the very bytes"
    if form in (".npz", ".parquet", "Arrow", "a function"):
        sent = pickle.dumps(images)
        again = pickle.loads(sent)  # in another process
        assert again.digest == images.digest
        contents = [sample.read() for sample in again.samples]
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(lambda i: images.samples[i % N].read(), range(10 * N))) == contents * 10
        assert len(sent) < PIXELS.nbytes, "without the images"


def test_a_dataset_is_asked_for_one_item_at_a_time() -> None:
    alone = threading.Lock()

    def item(row: int) -> Any:
        assert alone.acquire(blocking=False)
        time.sleep(1e-3)  # another thread has its turn
        alone.release()
        return PICTURES[row], row % 3

    images = open_images(Pictures(item))
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(lambda sample: sample.read(), [*images.samples] * 5))) == 5 * N


class TestIds:
    def test_they_are_of_content(self) -> None:
        one, other = (open_images((PIXELS[::step], LABELS[::step])).samples.ids for step in (1, -1))
        assert len(set(one)) == N
        assert [*other] == [*one][::-1]
        assert open_images(Pictures(lambda row: (PIXELS[row], 0))).samples.ids[3] == one[3]
        with pytest.warns(BeyondClsWarning, match=r"3 of its 5 images are the same as an earlier one, e\.g\. item 1 as item 0"):
            images = open_images(PIXELS[[0, 0, 1, 0, 1]])
        assert [*images.samples.ids] == [one[0], f"{one[0]}-1", one[1], f"{one[0]}-2", f"{one[1]}-1"]
        assert images.is_unlabelled

    def test_given_ones_are_numbers_too(self) -> None:
        images = open_images([{"img": PIXELS[i], "key": np.int64(10 - i)} for i in range(3)])
        assert [*images.samples.ids] == ["10", "9", "8"]
        with pytest.raises(DataError, match="id 'a' appears twice"):
            open_images([{"image": PIXELS[i], "id": "a"} for i in range(2)])


class TestLabels:
    @pytest.mark.parametrize(
        ("labels", "expected", "classes"),
        [
            ([0, torch.tensor(2), np.float64(1), -1], [(0,), (2,), (1,), None], None),
            (["cat", "ape", "cat", None], [(1,), (0,), (1,), None], ["ape", "cat"]),
            ([["b", "a"], ["b"], [], None], [(1, 0), (1,), (), ()], ["a", "b"]),
            ([torch.tensor([0, 1, 1]), np.array([1, 0, 0]), np.zeros(3), None], [(1, 2), (0,), (), ()], ["0", "1", "2"]),
        ],
        ids=["numbers", "names", "several names", "vectors"],
    )
    def test_forms(self, labels: list[Any], expected: list[Any], classes: list[str] | None) -> None:
        images = open_images(list(zip(PIXELS, labels, strict=False)))
        assert [sample.labels for sample in images.samples] == expected
        assert images.classes == classes
        problems = [sample.problem for sample in images.samples]
        assert problems == [None, None, None, None if images.multilabel else "has no label"]

    def test_boxes_with_labels_of_their_own(self) -> None:
        """As torchvision's detection sets have them."""
        target = {"boxes": torch.tensor([[0.0, 1, 5, 6], [2, 2, 3, 3], [0, 0, 9, 9]]), "labels": [2, 0, 2], "image_id": 7}
        plain = {"image": PIXELS[1], "label": 1, "boxes": [[0, 0, 4, 4], [5, 5, 1, 1]]}
        images = open_images({"items": [(PIXELS[0], target), plain], "classes": NAMES}, split="items")
        assert images.samples[0].boxes == (Box(0, 1, 5, 6, 2), Box(2, 2, 3, 3, 0), Box(0, 0, 9, 9, 2))
        assert (images.samples[0].id, images.samples[0].labels) == ("7", (2, 0))
        assert images.samples[1].boxes == (Box(0, 0, 4, 4, 1),)
        assert "expected x0 <= x1" in (images.samples[1].problem or "")

    def test_names_of_a_dataset_whose_labels_are_changed_are_not_taken(self) -> None:
        changed: Any = Pictures(lambda row: (PIXELS[row], 0))
        assert open_images(changed).classes == list(NAMES)
        changed.target_transform = lambda label: 0
        assert open_images(changed).classes is None


GREY = np.repeat(PIXELS[0][..., :1], 3, 2)


class TestPixels:
    @pytest.mark.parametrize(
        ("image", "shown"),
        [
            (PIXELS[0][..., 0], GREY),
            (torch.from_numpy(PIXELS[0][..., 0]), GREY),
            # Colours could be first or last.
            (torch.from_numpy(PIXELS[0][:3, :, :]), PIXELS[0][:3].transpose(1, 2, 0)),
            (PIXELS[0][:3], PIXELS[0][:3]),
            (np.dstack([PIXELS[0], PIXELS[0][..., 0]]), PIXELS[0]),
            (Image.fromarray(np.dstack([PIXELS[0], PIXELS[0][..., 0]])), PIXELS[0]),
        ],
        ids=["HW", "tensor", "colours first", "colours last", "alpha", "picture with alpha"],
    )
    def test_of_8_bits(self, image: Any, shown: np.ndarray) -> None:
        np.testing.assert_array_equal(np.asarray(open_images([{"image": image}]).image(0)), shown)

    def test_more_than_8_bits(self) -> None:
        deep = (PIXELS[0].astype(np.uint16) * 257)[..., 0]
        for given in (deep, Image.fromarray(deep)):
            images = open_images([{"image": given}])
            with pytest.raises(DataError, match=r"integers of more than 8 bits.* --scale 0,65535"):
                images.image(0)
            scaled = images.with_pixels(Pixels(scale=(0, 65535)))
            np.testing.assert_array_equal(np.asarray(scaled.image(0))[..., 0], PIXELS[0][..., 0])

    def test_orientation_is_kept(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        encoded = saved(PICTURES[0], "jpeg", exif=exif, quality=95)
        turned, picture = (open_images([{"image": image}]) for image in (encoded, Image.open(io.BytesIO(encoded))))
        one, other = (images.with_pixels(Pixels(orientation="exif")) for images in (turned, picture))
        np.testing.assert_array_equal(np.asarray(one.image(0)), np.asarray(other.image(0)))
        assert turned.image(0).info == picture.image(0).info


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(PICTURES)


TINY = np.zeros((4, 4, 3), np.uint8)
NORMAL = torch.randn(3, 4, 4)
MAP = np.where(np.arange(36) < 20, np.where(np.arange(40)[:, None] < 9, 1, 0), 255).astype(np.uint8)
MAP_CLASSES = ["sky", "tree"]


def npz(**content: Any) -> Callable[[Path], str]:
    return lambda folder: (np.savez(folder / "a.npz", **content), str(folder / "a.npz"))[1]


def columns(**content: Any) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").table(content), folder / "a.parquet")
        return str(folder / "a.parquet")

    return write


def module(text: str) -> Callable[[Path], str]:
    return lambda folder: f"{write_text(folder / 'mine.py', text)}:make"


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ([(NORMAL, 0)], r"image of item 0 of list has values of float32, -.*leave ToTensor and Normalize out"),
        ([(TINY.astype(int), 0)], r"values of int64, expected uint8"),
        ([(np.zeros((5, 5, 7), np.uint8), 0)], r"has shape \[5, 5, 7\], expected \[H, W, 3\]"),
        ([("a.png", 0)], r"is a str, expected a picture of Pillow, .*pathlib\.Path"),
        ([(Path("nowhere.png"), 0)], r"item 0 of list is not there: nowhere\.png"),
        ([{"picture": TINY}], r"an item has picture, but no image; call one image or img"),
        ([(TINY, 0.5)], r"item 0 of list has label '0\.5', a float; expected a class number"),
        ([(TINY, -3)], r"has label '-3'"),
        ([(TINY, [0]), (TINY + 1, [1])], "no names of classes; give them with --classes"),
        ([], "list has no images"),
        ((TINY, np.zeros(1)), r"have shape \[4, 4, 3\], expected .* image\[None\]"),
        ((TINY[None], np.zeros(2)), "1 images, but 2 of label; give one for each image"),
        (Stream(), r"Stream has no items by number.* list\(…\) of it .* tars"),
        (3, "int has no items by number"),
        ({"train": [], "val": []}, "there is no split of dict; give --split train or val"),
        (Pictures(lambda row: 1 / 0), r"item 0 of Pictures cannot be read \(ZeroDivisionError: .*\); mend it, or let it give"),
        ([(PIXELS[0], MAP)], "list has label maps, but no names of classes; give them as `classes`"),
        ({"images": PIXELS[:1], "masks": MAP[None], "labels": [1], "classes": MAP_CLASSES}, "other labels as well; leave"),
        (npz(images=np.array([{}], object)), "images.npy holds objects, which are pickled"),
        (npz(pictures=PIXELS), "has arrays pictures, but no images; call them images"),
        (columns(text=["a"]), "has columns text; expected images in one that is called image"),
        (columns(one=[{"bytes": b"x"}], two=[{"bytes": b"x"}]), "has several columns of images: one, two"),
        (module(""), "has no function 'make', expected one that returns images"),
        (module("def make(): raise KeyError('x')"), r"mine\.py:make fails in line 1 \(KeyError: 'x'\); mend it"),
        (module("import nothing.at.all"), "cannot be imported in line 1"),
        ("no.such:make", r"'no\.such:make' names no function: No module named 'no'"),
    ],
)
@pytest.mark.filterwarnings("ignore::store.errors.BeyondClsWarning")
def test_what_a_user_should_do(thing: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_images(thing(tmp_path) if isinstance(thing, FunctionType) else thing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "test"}, "list has no splits, so there is no 'test'; leave out --split"),
        ({"allow_outside": True}, "list is of form None"),
        ({"data_arguments": {"a": 1}}, "no function gives these images"),
    ],
)
def test_options_that_are_of_other_forms(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_images([(TINY, 0)], **options)


def test_what_is_not_taken_is_said() -> None:
    with pytest.warns(BeyondClsWarning, match=r"DataLoader of Pictures the dataset is taken; not taken: .*RandomSampler.*12"):
        open_images(DataLoader(Pictures(lambda row: (PIXELS[row], 0)), shuffle=True))
    with pytest.warns(BeyondClsWarning, match=r"of its items part 2 of 3 is not taken"):
        open_images([(TINY, 0, "author")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_images([(TINY, 0)])


def test_random_transforms_are_refused() -> None:
    random = np.random.default_rng(0)
    images = open_images(Pictures(lambda row: (np.roll(PIXELS[row], random.integers(1, 9), 0), 0)))
    with pytest.raises(BeyondClsError, match=r"item 4 of Pictures is another image .* leave random transforms out"):
        [images.image(4) for _ in range(9)]


def test_splits_as_medmnist_names_them(tmp_path: Path) -> None:
    """The examples have those of Keras."""
    arrays = {"train_images": PIXELS[:8], "train_labels": LABELS[:8], "val_images": PIXELS[8:], "val_labels": LABELS[8:, None]}
    np.savez(tmp_path / "a", **arrays)
    test = open_images(tmp_path / "a.npz", split="test")
    assert [sample.label for sample in test.samples] == LABELS[8:].tolist()


class TestTables:
    def test_the_test_set_may_be_called_validation(self, tmp_path: Path) -> None:
        Path(of_parquet(tmp_path), "train-00000-of-00002.parquet").rename(tmp_path / "validation-00000-of-00001.parquet")
        assert [len(open_images(str(tmp_path), split=split)) for split in ("train", "test", "validation")] == [7, 5, 5]

    def test_a_path_in_a_table_is_not_followed(self, tmp_path: Path) -> None:
        write = columns(image=[{"bytes": None, "path": __file__}, {"bytes": PNGS[1], "path": None}])
        assert [sample.problem for sample in open_images(write(tmp_path)).samples] == ["is empty (0 bytes)", None]

    def test_without_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = of_parquet(tmp_path)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(DataError, match=r"by pyarrow, which is not installed .*: pip install 'beyondcls\[parquet\]'"):
            open_images(source)


def test_split_and_arguments_are_passed(tmp_path: Path) -> None:
    lines = (
        "import numpy as np",
        "def make(split, n=1):",
        "    return np.arange(48 * n, dtype='uint8').reshape(n, 4, 4, 3) + ord(split)",
    )
    source = f"{write_text(tmp_path / 'mine.py', *lines)}:make"
    images = open_images(source, split="b", data_arguments={"n": 3})
    assert [np.asarray(images.image(row))[0, 0, 0] for row in range(3)] == [98, 146, 194]
    with pytest.raises(DataError, match=r"mine\.py:make fails .*split"):
        open_images(source)


def test_a_function_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "own_images.py", "import numpy", "def make():", "    return numpy.zeros((1, 4, 4, 3), 'uint8')")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(open_images("own_images:make")) == 1


class TestLabelMaps:
    @pytest.mark.parametrize(
        "change",
        [
            Image.fromarray,
            lambda labels: labels.astype(np.int64)[None],
            lambda labels: np.where(labels == 255, -1, labels.astype(int)),
            lambda labels: {"bytes": saved(Image.fromarray(labels), "png"), "path": None},
        ],
        ids=["picture", "1HW", "-1", "bytes"],
    )
    def test_forms(self, change: Callable[[np.ndarray], Any]) -> None:
        items = [{"image": PIXELS[0], "mask": change(MAP)}, {"image": PIXELS[1], "mask": change(0 * MAP)}]
        images = open_images({"train": items, "classes": MAP_CLASSES}, split="train")
        assert ([sample.labels for sample in images.samples], images.classes) == ([(0, 1), (0,)], MAP_CLASSES)
        np.testing.assert_array_equal(images.truths["segmentation"].label_map(images.samples[0]), MAP.view(np.int8))
        columns, sent = (one.truth_columns("segmentation") for one in (images, pickle.loads(pickle.dumps(images))))
        assert columns.digest(MAP_CLASSES) == sent.digest(MAP_CLASSES)

    def test_arrays_and_pairs_of_image_and_map(self) -> None:
        arrays = {"images": PIXELS, "masks": np.stack([MAP] * N), "classes": MAP_CLASSES}
        for thing in (arrays, Pictures(lambda row: (PIXELS[row], Image.fromarray(MAP)))):
            assert open_images(thing).samples[2].labels == (0, 1)

    @pytest.mark.parametrize(
        ("item", "message"),
        [
            ({"mask": MAP[:9]}, r"its label map has 36 x 9 pixels \(width x height\), its image 36 x 40"),
            ({"mask": MAP + 7}, r"its label map has the value \d+ in .* expected 0 to 1, 255"),
        ],
    )
    def test_problems(self, item: dict[str, Any], message: str) -> None:
        images = open_images({"a": [{"image": PIXELS[0], **item}], "classes": MAP_CLASSES}, split="a")
        assert re.search(message, images.samples[0].problem or "")
