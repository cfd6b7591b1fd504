"""What Python programs have their images in: Datasets and DataLoaders of PyTorch, Hugging Face datasets, lists, arrays; and
functions of the user's that give them.
"""

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.datasets.form import Splitting, chosen_split
from extract.datasets.items import ID, IMAGE, LABEL, SEGMENTATION, GivenItems, first_of
from extract.datasets.sample import DataError
from store.errors import BeyondClsError, BeyondClsWarning
from store.user_code import explaining, function_of

PARTS = ("image", "label", "id", "segmentation")
ARRAYS = {
    "image": (*IMAGE, "images", "x", "data", "arr_0"),
    "label": (*LABEL, "y", "targets", "arr_1"),
    "id": (*ID, "ids", "keys"),
    "segmentation": (*SEGMENTATION, "masks", "label_maps"),
    "classes": ("classes", "class_names", "label_names"),
}
ONE_BY_ONE = (
    "an image is read by its number here, more than once; give a Dataset with __getitem__ and __len__, list(…) of it if "
    "that fits into memory, or write it as tars: webdataset.TarWriter"
)


@dataclass(frozen=True)
class Rows:
    """Rows of a table by part, as PARTS has them.

    Attributes:
        columns: by part: columns that are as long as one another, or their names in `table`.
        table: gives its rows by number; None: there are columns themselves.
        held: what must live as long, such as a folder of temporary files.
    """

    columns: Mapping[str, Any]
    table: Any = None
    held: object = None

    def __len__(self) -> int:
        return len(self.columns["image"] if self.table is None else self.table)

    def __getitem__(self, row: int) -> dict[str, Any]:
        if self.table is None:
            return {part: column[row] for part, column in self.columns.items()}
        item = self.table[row]
        return {part: item[name] for part, name in self.columns.items()}


def name_of(thing: Any) -> str:
    """What an object is called in messages."""
    inner = getattr(thing, "dataset", None)
    return type(thing).__name__ if inner is None else f"{type(thing).__name__} of {name_of(inner)}"


def items_of(thing: Any, name: str, split: str | None = None) -> GivenItems:
    """The items of an object, and the names of their classes where it has them.

    Args:
        thing: a Dataset of PyTorch with numbered items; a DataLoader, of which the dataset alone is taken; a dataset of Hugging
            Face; a list; an array [N, H, W, 3], [N, 3, H, W] or [N, H, W] of uint8, or (images, labels); or a mapping of
            arrays or lists by name (images, labels, ids, masks, classes), or of any of these by split, and `classes`.
        name: for messages.
        split: in a mapping; other things have none.

    Raises:
        DataError: it is none of these, or has no such split.
        BeyondClsWarning: of a DataLoader, what is not taken.
    """
    if isinstance(thing, Mapping):
        if by_split := arrays_by_split(list(thing)):
            chosen = split_of(name, split, list(by_split))
            return of_arrays({part: thing[key] for part, key in by_split[chosen].items()}, name)
        classes, splits = thing.get("classes"), {key: value for key, value in thing.items() if key != "classes"}
        one = items_of(splits[split_of(name, split, list(splits))], f"{name}, {split}")
        return one if classes is None else replace(one, classes=list(map(str, classes)))
    if split is not None:
        raise DataError(f"{name} has no splits, so there is no {split!r}; leave out --split, and give the images of one split")
    if hasattr(thing, "dataset") and hasattr(thing, "batch_size") and hasattr(thing, "sampler"):
        sampler = type(thing.sampler).__name__
        if sampler != "_InfiniteConstantSampler":  # of an IterableDataset, which is refused
            is_default = getattr(thing.collate_fn, "__name__", "") in ("default_collate", "default_convert")
            left_out = ["batches"] + ([] if is_default else ["collate_fn"])
            if sampler != "SequentialSampler":
                left_out.append(f"{sampler}, so all {len(thing.dataset):,} images count, in their own order")
            warnings.warn(f"of {name} the dataset is taken; not taken: {'; '.join(left_out)}", BeyondClsWarning, stacklevel=3)
        return items_of(thing.dataset, name)
    if hasattr(thing, "features") and hasattr(thing, "cast_column") and hasattr(thing, "__len__"):
        return _from_hugging_face(thing, name)
    if isinstance(thing, tuple) and len(thing) == 2 and all(map(_is_array, thing)):
        return of_arrays({"image": thing[0], "label": thing[1]}, name)
    if _is_array(thing):
        return of_arrays({"image": thing}, name)
    # An IterableDataset of PyTorch inherits a __getitem__ that does nothing.
    gives_in_turn = any(parent.__name__ == "IterableDataset" for parent in type(thing).__mro__)
    if gives_in_turn or not (hasattr(thing, "__getitem__") and hasattr(thing, "__len__")) or isinstance(thing, str):
        raise DataError(f"{name} has no items by number, as far as can be seen; {ONE_BY_ONE}")
    return GivenItems(thing, _class_names(thing))


def of_arrays(arrays: Mapping[str, Any], name: str, held: object = None) -> GivenItems:
    """Images in arrays or lists, with labels and ids as long; by part, as PARTS has them, and `classes`. `held`: of `Rows`."""
    images = arrays["image"]
    shape = list(getattr(images, "shape", ()))
    if _is_array(images) and (len(shape) not in (3, 4) or (len(shape) == 3 and shape[-1] in (1, 3, 4))):
        raise DataError(
            f"the images of {name} have shape {shape}, expected [N, H, W, 3], [N, 3, H, W] or [N, H, W]; of a single image "
            "make one of these: image[None]"
        )
    columns = {part: arrays[part] for part in PARTS if arrays.get(part) is not None}
    if unequal := {part: len(column) for part, column in columns.items() if len(column) != len(images)}:
        part, n = next(iter(unequal.items()))
        raise DataError(f"{name} has {len(images):,} images, but {n:,} of {part}; give one for each image")
    names = arrays.get("classes")
    return GivenItems(Rows(columns, held=held), None if names is None else list(map(str, names)), is_threaded=True)


def arrays_by_split(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Names of arrays by split and part, `{"train": {"image": "x_train", "label": "y_train"}}`; "" is no split."""
    splits: dict[str, dict[str, str]] = {}
    common: dict[str, str] = {}
    for part, known in ARRAYS.items():
        for base in known:  # by preference
            for name in names:
                match = re.fullmatch(rf"(?:(.+)_)?{base}(?:_(.+))?", name, re.IGNORECASE)
                if match and not (match[1] and match[2]):
                    split = match[1] or match[2] or ""
                    (common if part == "classes" and not split else splits.setdefault(split, {})).setdefault(part, name)
    return {split: {**common, **parts} for split, parts in splits.items() if "image" in parts}


def split_of(name: str, split: str | None, splits: Sequence[str]) -> str:
    """The split that was asked for; "" where there are none."""
    if list(splits) == [""]:
        if split is not None:
            raise DataError(f"{name} has no splits, so there is no {split!r}; leave out --split")
        return ""
    return chosen_split(name, split, sorted(filter(None, splits)))


def _is_array(thing: Any) -> bool:
    return hasattr(thing, "shape") and hasattr(thing, "dtype") and hasattr(thing, "__len__")


def _class_names(dataset: Any) -> list[str] | None:
    """Names that a Dataset has, or the one that it is a part of; none where its labels are changed."""
    if getattr(dataset, "target_transform", None) is not None:
        return None
    names = getattr(dataset, "classes", None)
    if isinstance(names, Sequence) and names:
        if all(isinstance(one, str) for one in names):
            return list(names)
        if all(isinstance(one, tuple) and one for one in names):  # ImageNet's synonyms
            return [str(one[0]) for one in names]
    inner = getattr(dataset, "dataset", None)
    return None if inner is None else _class_names(inner)


def _from_hugging_face(dataset: Any, name: str) -> GivenItems:
    """Images as they are in the files, without being decoded twice; a transform of the user's own is applied."""
    features = dataset.features
    described = features.to_dict() if hasattr(features, "to_dict") else dict(features)
    names, classes = columns_of(described, name)
    if (getattr(dataset, "format", None) or {}).get("type") == "custom":  # with_transform
        return GivenItems(dataset, classes)
    feature = features[names["image"]]
    if hasattr(feature, "decode"):
        dataset = dataset.cast_column(names["image"], type(feature)(decode=False))
    if hasattr(dataset, "with_format"):
        dataset = dataset.with_format(None)
    return GivenItems(Rows(names, dataset), classes, is_threaded=True)


def columns_of(features: Mapping[str, Any], name: str) -> tuple[dict[str, str], list[str] | None]:
    """Columns by part (image, label, id, segmentation) of a table, and the names of its classes.

    `features`: of its columns, as Hugging Face writes them into files: {"image": {"_type": "Image"}, "label": {"_type":
    "ClassLabel", "names": […]}}.
    """
    images = [column for column, feature in features.items() if _is_feature(feature, "Image")]
    image = first_of(IMAGE, images) or (images[0] if len(images) == 1 else None)
    if image is None:
        among = f"has several columns of images: {', '.join(images)}" if images else f"has columns {', '.join(features)}"
        raise DataError(f"{name} {among}; expected images in one that is called image: rename_column does that")
    maps = first_of((*SEGMENTATION, *LABEL), [column for column in images if column != image])
    coded = [column for column, feature in features.items() if _names_of_column(feature) is not None]
    label = first_of(LABEL, [column for column in features if column != maps]) or (coded[0] if len(coded) == 1 else None)
    if label is None and coded:
        raise DataError(f"{name} has several columns of classes: {', '.join(coded)}; rename the one that is meant to label")
    found = {"image": image, "label": label, "id": first_of(ID, features), "segmentation": maps}
    names = {part: column for part, column in found.items() if column is not None}
    return names, None if label is None else _names_of_column(features[label])


def _is_feature(feature: Any, kind: str) -> bool:
    return isinstance(feature, Mapping) and feature.get("_type") == kind


def _names_of_column(feature: Any) -> list[str] | None:
    """Names of the classes of a column, or of its elements."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names_of_column(feature[0])
    if _is_feature(feature, "ClassLabel") and isinstance(feature.get("names"), list):
        return list(map(str, feature["names"]))
    return _names_of_column(feature.get("feature")) if isinstance(feature, Mapping) and feature.get("feature") else None


def function(source: str, split: str | None = None, /, **arguments: Any) -> GivenItems:
    """What FILE.py:FUNCTION, or package.module:function, returns: whatever `items_of` takes.

    It is run, so name none that you do not trust. The split is passed to a function that takes `split`; what another returns
    is a mapping of splits.
    """
    if not is_function(source):
        raise DataError(f"there is no function {source!r}; expected FILE.py:FUNCTION, or package.module:function")
    try:
        make = function_of(source, "function", "images")
        parameters = inspect.signature(make).parameters.values()
        if any(p.name == "split" or p.kind is p.VAR_KEYWORD for p in parameters):
            arguments, split = {"split": split, **arguments} if split is not None else arguments, None
        with explaining(source, f"{source} fails"):
            made = make(**arguments)
    except BeyondClsError as error:
        raise DataError(str(error)) from error
    return items_of(made, source, split)


def is_function(source: str) -> bool:
    """Whether a source is FILE.py:FUNCTION or package.module:function, as no file is called."""
    place, colon, name = source.rpartition(":")
    is_module = all(part.isidentifier() for part in place.split("."))
    return bool(colon) and name.isidentifier() and (is_module or place.endswith(".py")) and not Path(source).exists()


FUNCTION = Splitting(function, is_function)
