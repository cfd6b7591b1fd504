"""What holds for every form of data set, by the example that it brings."""

from pathlib import Path

import numpy as np
import pytest

from extract.datasets import DATASETS, DataError, ImageSet, form_of, open_images
from extract.datasets.form import Plain, Published
from tests.extract.pictures import write_example, write_text

SPLITS = [(form, split or None) for form, entry in DATASETS.items() for split in entry.example.images]
every = pytest.mark.parametrize("form", DATASETS)
every_split = pytest.mark.parametrize(("form", "split"), SPLITS, ids=str)


def labels_by_id(images: ImageSet) -> dict[str, tuple[str, ...]]:
    """Names of the classes of each image."""
    assert images.classes is not None
    return {sample.id: tuple(images.classes[label] for label in sample.labels or ()) for sample in images.samples}


def lists(form: str, folder: Path) -> list[Path]:
    """Files of the example beside its images."""
    return [folder / name for name, content in DATASETS[form].example.files.items() if content is not None]


def tried(source: str, form: str, split: str | None) -> tuple[ImageSet | None, str]:
    """The images, or the error's message."""
    try:
        return open_images(source, form, split=split), ""
    except DataError as error:
        return None, str(error)


@every_split
class TestEverySplit:
    def test_images_and_classes_are_those_of_the_example(self, form: str, split: str | None, tmp_path: Path) -> None:
        source, expected = write_example(tmp_path, form), DATASETS[form].example.images[split or ""]
        assert form_of(source, split) == form, "it is recognised"
        images = open_images(source, split=split)
        assert labels_by_id(images) == expected
        assert list(labels_by_id(images)) == list(expected), "in this order"
        assert images.classes == list(DATASETS[form].example.classes)
        assert images.all_problems() == []
        assert images.multilabel == any(len(classes) != 1 for classes in expected.values())
        for row, sample in enumerate(images.samples):
            assert images.image(row).mode == "RGB"
            assert len(sample.read()) == sample.size
            assert all(box.label < len(images.classes or ()) for box in sample.boxes)

    def test_the_digest_does_not_know_where_it_lies(self, form: str, split: str | None, tmp_path: Path) -> None:
        one, other = (open_images(write_example(tmp_path / name, form), split=split) for name in ("one", "deep/other"))
        assert one.digest == other.digest
        if len(one) > 1:
            assert one.digest != one.part(range(len(one))[::-1]).digest
            assert one.digest != one.part([0]).digest

    def test_truths_are_those_of_the_example(self, form: str, split: str | None, tmp_path: Path) -> None:
        """Their classes have names, all images have an entry, and labels of images are among the classes of a label map."""
        source = write_example(tmp_path, form)
        images = open_images(source, split=split)
        assert tuple(images.truths) == DATASETS[form].example.truths
        assert set(images.usual_truths) <= set(images.truths)
        for name, truths in images.truths.items():
            columns, again = images.truth_columns(name), open_images(source, split=split).truth_columns(name)
            assert columns.digest(truths.classes) == again.digest(truths.classes)
            assert len(columns.arrays["first"]) == len(images) + 1
            labels = columns.arrays.get("label", np.zeros(0, int))  # absent where no image has any
            assert labels.max(initial=0) < len(truths.classes)
            for row, sample in enumerate(images.samples if name == "segmentation" else ()):
                present = labels[slice(*columns.arrays["first"][row : row + 2])]
                assert {(images.classes or [])[label] for label in sample.labels or ()} <= {truths.classes[i] for i in present}
            alone = images.part([0]).truth_columns(name)
            n = columns.arrays["first"][1]
            assert alone.arrays["first"].tolist() == [0, n]

    def test_an_image_that_is_listed_but_missing_keeps_its_row(self, form: str, split: str | None, tmp_path: Path) -> None:
        source = write_example(tmp_path, form)
        before = open_images(source, split=split)
        digest, sample = before.digest, before.samples[-1]
        if not DATASETS[form].example.listed or not isinstance(sample.file, Path) or sample.size != sample.file.stat().st_size:
            return  # a part of a file, or nothing but the file itself tells of it
        sample.file.unlink()
        after = open_images(source, split=split)
        assert labels_by_id(after) == labels_by_id(before)
        assert after.all_problems() == [f"{sample}: is in the list, but not there"]
        assert after.digest != digest

    def test_a_list_that_is_missing_loses_no_image(self, form: str, split: str | None, tmp_path: Path) -> None:
        source = write_example(tmp_path, form)
        ids = labels_by_id(open_images(source, split=split)).keys()
        for file in lists(form, tmp_path):
            content = file.read_bytes()
            file.unlink()
            images, message = tried(source, form, split)
            if images is None:
                assert str(tmp_path) in message
            elif DATASETS[form].example.listed:
                assert {sample.id for sample in images.samples} == ids, file
            file.write_bytes(content)

    def test_a_damaged_list_is_read_or_named(self, form: str, split: str | None, tmp_path: Path) -> None:
        source = write_example(tmp_path, form)
        for file in lists(form, tmp_path):
            content = file.read_bytes()
            for damaged in (b"", b"\xff\xfe\0" + content, content[: len(content) // 2], b"[" * 100_000):
                file.write_bytes(damaged)
                images, message = tried(source, form, split)
                assert str(tmp_path) in message or (images is not None and (images.all_problems() or images.digest)), file
            file.write_bytes(content)


@every
class TestEveryForm:
    def test_splits_share_no_image(self, form: str, tmp_path: Path) -> None:
        source, entry = write_example(tmp_path, form), DATASETS[form]
        if isinstance(entry, Plain):
            assert list(entry.example.images) == [""]
            with pytest.raises(
                DataError, match=f"form {form} has no splits, and there is no folder 'test' in .*; leave out --sp"
            ):
                open_images(source, form, split="test")
            return
        splits = entry.splits if isinstance(entry, Published) else tuple(entry.example.images)
        assert set(entry.example.images) <= set(splits)
        sets = [open_images(source, form, split=split) for split in entry.example.images]
        assert len(sets) > 1
        places = [(sample.file, sample.offset, sample.digest) for images in sets for sample in images.samples]
        assert len(set(places)) == len(places)
        for split, asked in ((None, "there is no split"), ("dev", "there is no split 'dev'")):
            with pytest.raises(DataError, match=rf"{asked} of .*; give --split .*{splits[0]}"):
                open_images(source, form, split=split)

    def test_names_of_classes(self, form: str, tmp_path: Path) -> None:
        """A published data set has its own, and so may a file or a function; of others the user may give them."""
        source, entry = write_example(tmp_path / "d", form), DATASETS[form]
        split = next(iter(entry.example.images))
        names_in_set = open_images(source, form, split=split or None).classes or []
        names = write_text(tmp_path / "names.txt", *names_in_set, "one more")
        if not isinstance(entry, Plain):
            with pytest.raises(DataError, match=r"names its classes itself; leave out --classes '.*names\.txt'"):
                open_images(source, form, names, split)
        else:
            assert open_images(source, form, names).classes == [*names_in_set, "one more"]

    @pytest.mark.parametrize("place", ["{}/nowhere", "memory://nowhere"])
    def test_nothing_is_there(self, form: str, place: str, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"there is no .*nowhere"):
            open_images(place.format(tmp_path), form)

    def test_a_folder_of_nothing_or_of_something_else(self, form: str, tmp_path: Path) -> None:
        expected = f"does not look like {form}; expected a folder" if isinstance(DATASETS[form], Published) else "; expected "
        for names in ((), ("notes.txt",)):
            for name in names:
                write_text(tmp_path / name, "something")
            with pytest.raises(DataError, match=expected):
                open_images(str(tmp_path), form)


def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    write_example(tmp_path, "food101")
    write_example(tmp_path, "pets")
    with pytest.raises(DataError, match="looks like food101 and like pets; say which with --form"):
        open_images(str(tmp_path), split="test")
    assert len(open_images(str(tmp_path), "pets", split="test")) == 1
