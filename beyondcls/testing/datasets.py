"""What holds for every form of data set, by the example that it brings."""

import io
import tempfile
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from beyondcls.testing.checking import expect
from extract.datasets import DATASETS, DataError, ImageSet, form_of, open_images
from extract.datasets.form import Example, Plain, Published

S = TypeVar("S")
EXAMPLES: dict[str, Example] = {}  # of forms whose entries bring none: the tests of this program keep theirs


def example_of(form: str) -> Example:
    """The tiny copy of a form, which its entry brings."""
    if (example := DATASETS[form].example or EXAMPLES.get(form)) is None:
        raise AssertionError(f"form {form} brings no example of its layout; give its entry one (example=)")
    return example


class Split(NamedTuple):
    """A split of the example of a form, by name; None for a form without splits."""

    form: str
    split: str | None

    def __str__(self) -> str:
        return f"{self.form}-{self.split}"

    @property
    def example(self) -> Example:
        return example_of(self.form)

    def open(self, source: str) -> ImageSet:
        return open_images(source, self.form, split=self.split)


def splits(form: str) -> Iterator[Split]:
    """All splits of the example of a form."""
    for split in example_of(form).images:
        yield Split(form, split or None)


def picture(seed: int, form: str = "png", width: int = 36, height: int = 40) -> bytes:
    """An encoded image of smooth noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, form)
    return file.getvalue()


def write_example(folder: Path, form: str) -> str:
    """The tiny copy that a form of data set brings; what a user would name."""
    example = example_of(form)
    for seed, (name, content) in enumerate(example.files.items()):
        if content is None:
            content = picture(seed, "png" if name.endswith("png") else "jpeg")
        elif not isinstance(content, str | bytes):
            content = content()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return str(folder / example.source)


def labels_by_id(images: ImageSet) -> dict[str, tuple[str, ...]]:
    """Names of the classes of each image."""
    classes = images.classes or []
    return {sample.id: tuple(classes[label] for label in sample.labels or ()) for sample in images.samples}


def in_a_folder(check: Callable[[S, Path], None]) -> Callable[[S], None]:
    """A check that has an empty folder."""

    @wraps(check)
    def checked(subject: S) -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(subject, Path(folder).resolve())

    return checked


def refusal(source: str, form: str, split: str | None = None, classes: Path | None = None) -> str:
    """The message with which images are refused; empty if they are opened."""
    try:
        open_images(source, form, classes, split)
    except DataError as error:
        return str(error)
    return ""


@in_a_folder
def has_the_images_and_classes_of_its_example(case: Split, folder: Path) -> None:
    source, expected = write_example(folder, case.form), case.example.images[case.split or ""]
    expect(form_of(source, case.split) == case.form, f"its example is taken for {form_of(source, case.split)}")
    images = open_images(source, split=case.split)
    labels = labels_by_id(images)
    expect(labels == expected, f"images have classes {labels}, expected {expected}")
    expect(list(labels) == list(expected), f"images are in the order {list(labels)}, expected {list(expected)}")
    expect(images.classes == list(case.example.classes), f"classes are {images.classes}, expected {case.example.classes}")
    expect(images.all_problems() == [], f"images of its example cannot be read: {images.all_problems()}")
    several = any(len(classes) != 1 for classes in expected.values())
    expect(images.multilabel == several, f"multilabel is {images.multilabel}, expected {several}")
    for row, sample in enumerate(images.samples):
        expect(images.image(row).mode == "RGB", f"{sample} is opened as {images.image(row).mode}, expected RGB")
        expect(len(sample.read()) == sample.size, f"{sample} says {sample.size} bytes and has {len(sample.read())}")
        n_classes = len(images.classes or ())
        expect(all(box.label < n_classes for box in sample.boxes), f"a box of {sample} has none of the {n_classes} classes")


@in_a_folder
def has_a_digest_that_does_not_know_where_it_lies(case: Split, folder: Path) -> None:
    one, other = (case.open(write_example(folder / name, case.form)) for name in ("one", "deep/other"))
    expect(one.digest == other.digest, "the same images in another folder have another digest")
    if len(one) > 1:
        expect(one.digest != one.part(range(len(one))[::-1]).digest, "images in another order have the same digest")
        expect(one.digest != one.part([0]).digest, "one image has the digest of all")


@in_a_folder
def has_the_truths_of_its_example(case: Split, folder: Path) -> None:
    """Their classes have names, all images have an entry, and labels of images are among the classes of a label map."""
    source = write_example(folder, case.form)
    images = case.open(source)
    expect(tuple(images.truths) == case.example.truths, f"truths are {tuple(images.truths)}, expected {case.example.truths}")
    expect(set(images.usual_truths) <= set(images.truths), f"usual truths {images.usual_truths} are not all there")
    for name, truths in images.truths.items():
        columns, again = images.truth_columns(name), case.open(source).truth_columns(name)
        expect(columns.digest(truths.classes) == again.digest(truths.classes), f"{name} read twice differ")
        first = columns.arrays["first"]
        expect(len(first) == len(images) + 1, f"{name} have entries of {len(first) - 1} images, expected {len(images)}")
        labels = columns.arrays.get("label", np.zeros(0, int))  # absent where no image has any
        expect(labels.max(initial=0) < len(truths.classes), f"a label of {name} has no class")
        for row, sample in enumerate(images.samples if name == "segmentation" else ()):
            present = {truths.classes[i] for i in labels[slice(*first[row : row + 2])]}
            of_image = {(images.classes or [])[label] for label in sample.labels or ()}
            expect(of_image <= present, f"{sample} has classes {of_image}, its label map {present}")
        alone = images.part([0]).truth_columns(name).arrays["first"].tolist()
        expect(alone == [0, first[1]], f"{name} of the first image alone are {alone}, expected {[0, first[1]]}")


@in_a_folder
def keeps_the_row_of_an_image_that_is_listed_but_missing(case: Split, folder: Path) -> None:
    source = write_example(folder, case.form)
    before = case.open(source)
    digest, sample = before.digest, before.samples[-1]
    if not case.example.listed or not isinstance(sample.file, Path) or sample.size != sample.file.stat().st_size:
        return  # a part of a file, or nothing but the file itself tells of it
    sample.file.unlink()
    after = case.open(source)
    expect(labels_by_id(after) == labels_by_id(before), "the image has gone, or others changed; give ids from the list")
    problems, expected = after.all_problems(), [f"{sample}: is in the list, but not there"]
    expect(problems == expected, f"problems are {problems}, expected {expected}")
    expect(after.digest != digest, "the digest is the same")


@in_a_folder
def loses_no_image_with_a_list_that_is_missing(case: Split, folder: Path) -> None:
    source = write_example(folder, case.form)
    ids = labels_by_id(case.open(source)).keys()
    for file in lists(case, folder):
        content = file.read_bytes()
        file.unlink()
        if message := refusal(source, case.form, case.split):
            expect(str(folder) in message, f"without {file.name}: {message!r} names no file")
        elif case.example.listed:
            left = {sample.id for sample in case.open(source).samples}
            expect(left == ids, f"without {file.name} there are images {left}, expected all or an error")
        file.write_bytes(content)


@in_a_folder
def reads_or_names_a_damaged_list(case: Split, folder: Path) -> None:
    source = write_example(folder, case.form)
    for file in lists(case, folder):
        content = file.read_bytes()
        for damaged in (b"", b"\xff\xfe\0" + content, content[: len(content) // 2], b"[" * 100_000):
            file.write_bytes(damaged)
            if message := refusal(source, case.form, case.split):
                expect(str(folder) in message, f"{file.name} is damaged: {message!r} names no file")
            else:
                images = case.open(source)
                expect(images.all_problems() or images.digest, f"{file.name} is damaged: no digest")
        file.write_bytes(content)


def lists(case: Split, folder: Path) -> list[Path]:
    """Files of the example other than its images."""
    return [folder / name for name, content in case.example.files.items() if content is not None]


@in_a_folder
def has_splits_that_share_no_image(form: str, folder: Path) -> None:
    source, entry = write_example(folder, form), DATASETS[form]
    if isinstance(entry, Plain):
        expect(list(example_of(form).images) == [""], "a form without splits has an example of one, named ''")
        expect(f"form {form} has no splits" in refusal(source, form, "test"), "a split that it lacks is not refused")
        return
    splits = entry.splits if isinstance(entry, Published) else tuple(example_of(form).images)
    expect(set(example_of(form).images) <= set(splits), f"its example has other splits than {splits}")
    sets = [open_images(source, form, split=split) for split in example_of(form).images]
    expect(len(sets) > 1, "its example has a single split; the contract compares two")
    places = [(sample.file, sample.offset, sample.digest) for images in sets for sample in images.samples]
    expect(len(set(places)) == len(places), "an image is in two splits")
    for split in (None, "dev"):
        message = refusal(source, form, split)
        expect("; give --split" in message and splits[0] in message, f"split {split}: {message!r}")


@in_a_folder
def has_names_of_classes(form: str, folder: Path) -> None:
    """A published data set has its own, and so may a file or a function; of others the user may give them."""
    source, entry = write_example(folder / "d", form), DATASETS[form]
    split = next(iter(example_of(form).images))
    known = open_images(source, form, split=split or None).classes or []
    names = folder / "names.txt"
    names.write_text("".join(f"{name}\n" for name in (*known, "one more")))
    if not isinstance(entry, Plain):
        message = refusal(source, form, split, names)
        expect("names its classes itself" in message, f"names of classes are not refused: {message!r}")
    else:
        given = open_images(source, form, names).classes
        expect(given == [*known, "one more"], f"classes are {given}, expected those that were given")


@in_a_folder
def says_that_nothing_is_there(form: str, folder: Path) -> None:
    for place in (f"{folder}/nowhere", "memory://nowhere"):
        message = refusal(place, form)
        expect("there is no" in message and "nowhere" in message, f"of {place}: {message!r}")


@in_a_folder
def refuses_a_folder_of_nothing_or_of_something_else(form: str, folder: Path) -> None:
    expected = f"does not look like {form}; expected a folder" if isinstance(DATASETS[form], Published) else "; expected "
    for name in ("", "notes.txt"):
        if name:
            (folder / name).write_text("something\n")
        message = refusal(str(folder), form)
        expect(expected in message, f"of a folder with {name or 'nothing'}: {message!r}, expected {expected!r}")


SPLIT_CHECKS = (
    has_the_images_and_classes_of_its_example,
    has_a_digest_that_does_not_know_where_it_lies,
    has_the_truths_of_its_example,
    keeps_the_row_of_an_image_that_is_listed_but_missing,
    loses_no_image_with_a_list_that_is_missing,
    reads_or_names_a_damaged_list,
)
FORM_CHECKS = (
    has_splits_that_share_no_image,
    has_names_of_classes,
    says_that_nothing_is_there,
    refuses_a_folder_of_nothing_or_of_something_else,
)
