"""How images of one form are opened, how the form is recognised, and what it looks like."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from extract.datasets.image_set import ImageSet
from extract.datasets.items import GivenItems, image_set
from extract.datasets.reading import opening
from extract.datasets.sample import DataError

# Splits that a pipeline asks for, and other names for them: where the labels of test images are secret, val is the test set.
ALTERNATIVES = {"train": ("trainval", "train2017"), "test": ("val", "val2017", "validation")}


def chosen_split(name: str, split: str | None, splits: Sequence[str]) -> str:
    """The split that is meant, of those that there are; DataError where none is, or there is none of this name."""
    split = next((other for other in (split, *ALTERNATIVES.get(split or "", ())) if other in splits), split)
    if split is None or split not in splits:
        problem = "there is no split" if split is None else f"there is no split {split!r}"
        raise DataError(f"{problem} of {name}; give --split {' or '.join(splits)}")
    return split


@dataclass(frozen=True)
class Example:
    """A tiny copy of a data set, which shows its layout; the contract of all forms reads it.

    Attributes:
        files: by path, their content; None is an image.
        classes: their names by label.
        images: by split, the names of the classes of each image, by its id and in order. A form without splits has one, "".
        source: path that the user names.
        listed: a list names the images, so that a missing one is noticed.
        truths: label maps or instances that it has.
    """

    files: Mapping[str, str | bytes | Callable[[], bytes] | None]
    classes: tuple[str, ...]
    images: Mapping[str, Mapping[str, tuple[str, ...]]]
    source: str = "."
    listed: bool = True
    truths: tuple[str, ...] = ()


def pictures(folder: str, *names: str) -> dict[str, None]:
    """Images of an example."""
    return dict.fromkeys(f"{folder}/{name}" for name in names)


@dataclass(frozen=True)
class Plain:
    """A form that images of any data set can have.

    Attributes:
        open: `open(source, classes)`, where the user may name the classes in a file, in order of labels, one a line; raises
            DataError where there is no such source, or part of it cannot be read.
        example, is_made_of_states: as for `Published`.
    """

    open: Callable[[str, Path | None], ImageSet]
    example: Example | None = None
    is_made_of_states: bool = False

    def images(self, name: str, source: str, classes: Path | None, split: str | None) -> ImageSet:
        """Open the images; DataError where a split was asked for, or as `open`."""
        if split is not None:
            raise DataError(f"form {name} has no splits, and there is no folder {split!r} in {source!r}; leave out --split")
        return self.open(source, classes)


@dataclass(frozen=True)
class Splitting:
    """A form of any images that may hold several splits, and names of classes.

    Attributes:
        given: `given(source, split)`, maybe with arguments, the items and their classes, of which `items.image_set` makes
            a set; it raises DataError where there is no such source or split, or part of it cannot be read.
        recognises: whether a source, by its name or as a folder, is of this form.
        example, is_made_of_states: as for `Published`.
    """

    given: Callable[..., GivenItems]
    recognises: Callable[[str], bool]
    example: Example | None = None
    is_made_of_states: bool = False

    def images(self, name: str, source: str, classes: Path | None, split: str | None) -> ImageSet:
        """Open the images; DataError as `given`."""
        return image_set(source, partial(self.given, source, split, **(opening().arguments or {})), classes)


@dataclass(frozen=True)
class Published:
    """A data set as it is published: a folder with files of known names, which hold the classes and the splits.

    Attributes:
        open: `open(folder, split)`; raises DataError where a list is missing or damaged, or there are no images.
        splits: their names.
        signs: paths in the folder, one of which shows that this is the data set.
        example: of its layout, which `beyondcls.testing` reads; those of this program's forms are next to the tests.
        yields_to: paths that show that it is another form, unless the user names this one.
        is_made_of_states: whether opening says of all that the list of images depends on (`reading.made_of`), so that the list
            need not be made again while nothing of that changes.
    """

    open: Callable[[Path, str], ImageSet]
    splits: tuple[str, ...]
    signs: tuple[str, ...]
    example: Example | None = None
    yields_to: tuple[str, ...] = ()
    is_made_of_states: bool = False

    def images(self, name: str, source: str, classes: Path | None, split: str | None) -> ImageSet:
        """Open the images; DataError where there is no folder, or no such split, where classes are given, or as `open`."""
        if not Path(source).is_dir():
            raise DataError(f"there is no folder {source!r}; expected that of {name}, with {' or '.join(self.signs)}")
        if not self.recognises(Path(source)):
            raise DataError(f"{source} does not look like {name}; expected a folder with {' or '.join(self.signs)}")
        split = chosen_split(name, split, self.splits)
        if classes is not None:
            raise DataError(f"{name} names its classes itself; leave out --classes {str(classes)!r}")
        return self.open(Path(source), split)

    def recognises(self, folder: Path) -> bool:
        """Whether a folder has one of the signs."""
        return any((folder / sign).exists() for sign in self.signs)

    def is_seen_in(self, folder: Path) -> bool:
        """Whether a folder is taken for this form, where the user names none."""
        return self.recognises(folder) and not any((folder / sign).exists() for sign in self.yields_to)
