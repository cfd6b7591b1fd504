"""Any images: in a folder with one subfolder per class, as torchvision's ImageFolder reads it, or what is there in place of
images; and in a .csv that names them, with columns id, path and label, or segmentation.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from extract.datasets.classes import Labels
from extract.datasets.form import Plain
from extract.datasets.gathering import BROKEN_FOLDER, FoundFile, LeftOut, broken_link, gather, is_clutter
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Indices, LabelMaps, segmented
from extract.datasets.listed import inside, lines, listed, parsing, text
from extract.datasets.pixels import extension, image_id, is_image, missing_reader
from extract.datasets.reading import made_of, opening
from extract.datasets.sample import Box, DataError, Sample
from store.format.classes import whole_number

EXPECTED = (
    "expected tars, a folder with a folder for each class (FOLDER/CLASS/NAME.png), a .csv, an .npz or a .parquet; unpack "
    "archives, and write what arrays, databases or videos of other formats hold as images"
)
MOST_LOOKED_AT = 10_000  # files of a folder
CORNERS = ("x0", "y0", "x1", "y1")
SEPARATORS = ("|", "\t", ",", "/", " ")  # that are in use elsewhere
MAP_NAMES = "segmentation-classes.txt"  # of label maps


def image_folder(source: str, classes: Path | None = None) -> ImageSet:
    """Images in `source/CLASS/…/NAME.jpg`; labels number the class folders in alphabetical order.

    So 10 comes before 2, as for torchvision; probes compare the names of classes, not their order.
    Links to folders are followed. A folder whose images are in no class folder is a set without labels. Names of classes are
    needed if some class folder is missing in this split.
    """
    root, left_out = Path(source), LeftOut()
    if not root.is_dir():
        raise DataError(_explain_foreign_file(source))
    images = gather(root, left_out)
    if not images:
        beside = f" (left out: {left_out})" if left_out else ""
        raise DataError(f"{source} has no images; {EXPECTED}; {_explain_foreign_folder(root)}{beside}")
    folders = sorted(p.name for p in root.iterdir() if _is_class(p))
    names = lines(classes) if classes else None
    loose = [found for found in images if "/" not in found.name]
    if len(loose) == len(images):
        return ImageSet(source, (_sample(root, found, None) for found in loose), names, left_out=left_out)
    names = folders if names is None else names
    n_named = Counter(names)
    if twice := [folder for folder in folders if n_named[folder] > 1]:
        raise DataError(f"{classes} names {twice[0]!r} twice, so the label of that class folder is not known; name it once")
    if extra := sorted(set(folders) - set(names)):
        raise DataError(f"{source} has class folders that {classes} does not name: {', '.join(extra[:5])}")
    label = {name: (i,) for i, name in enumerate(names)}
    named = (_sample(root, found, label[found.name.partition("/")[0]]) for found in images if "/" in found.name)
    others = (_sample(root, found, None, "has no label (it lies in no class folder)") for found in loose)
    return ImageSet(source, chain(named, others), names, left_out=left_out)


def _is_class(entry: Path) -> bool:
    """Whether an entry of the folder is a class; so is a link that leads nowhere, or the labels of others would change."""
    if entry.name.startswith(".") or is_clutter(entry.name):
        return False
    return entry.is_dir() or (entry.is_symlink() and not entry.exists() and broken_link(entry.name) is BROKEN_FOLDER)


def _sample(root: Path, found: FoundFile, labels: tuple[int, ...] | None, problem: str | None = None) -> Sample:
    if not found.size:
        made_of(root / found.name)
        problem = "is empty (0 bytes)"
    problem = missing_reader(found.name) or problem
    return Sample(image_id(found.name), labels, root / found.name, 0, found.size, problem)


def _explain_foreign_file(source: str) -> str:
    """Why a source that is no folder is not read, as the message of an error."""
    path = Path(source)
    if not path.exists():
        broken = ", only a link that leads nowhere; fetch what it leads to" if path.is_symlink() else ""
        return f"there is no folder {source!r}{broken}"
    if is_image(path.name):
        return f"{source} is a single image; name the folder that it is in, or show it to a probe: beyondcls predict"
    return f"{source} is a file, not a set of images; {EXPECTED}"


def _explain_foreign_folder(root: Path) -> str:
    """What a folder without images holds."""
    by_end: dict[str, list[Path]] = {}
    for file in islice((file for file in root.rglob("*") if file.is_file()), MOST_LOOKED_AT):
        by_end.setdefault(extension(file.name), []).append(file)
    for end in ("tar", "arrow", "parquet", "csv"):
        if end in by_end:
            first = min(by_end[end])
            return f"it has a .{end} in a folder; name {first if end == 'csv' else f'that of one split: {first.parent}'}"
    most = max(by_end, key=lambda end: len(by_end[end]), default=None)
    return "it holds no file" if most is None else f"most of its files are .{most}"


def csv_table(source: str, classes: Path | None = None) -> ImageSet:
    """Images of a .csv with a header: `id`, `path`, `label`, and boxes if there are any; other columns are ignored.

    `path` is relative to the folder of the .csv and cannot leave it, unless `open_images` allows that. `label` is a whole
    number from 0 (`3` or `3.0`), or the name of a class; names are numbered alphabetically, unless a file of class names orders
    them. A set is multi-label if its column is called `labels`, or if some `label` holds several, separated by `;`; then no
    label is an answer too. Boxes are given by columns x0, y0, x1, y1 (empty without a box), or by `boxes`, four numbers each,
    separated by `;`.

    A column `segmentation` is the path of a label map, of indices from 0 with 255 for void. Its classes are those of
    `segmentation-classes.txt` next to the .csv, a name a line. Without a column of labels, these classes are the labels: an
    image has those that its map shows. Where all of a column `label` are empty, it is a set without labels. Names of classes
    are needed for multi-label sets whose labels are integers.
    """
    file = Path(source)
    if not file.is_file():
        raise DataError(f"there is no .csv {source!r}; expected a table with columns id, path, label")
    with parsing(file, "columns id, path, label (or labels, or segmentation), and x0, y0, x1, y1 or boxes"):
        rows, outside = _read_table(file), opening().outside
        if "segmentation" in rows[0] and not {"label", "labels"} & rows[0].keys():
            if classes is not None:
                raise DataError(f"{file} has no labels but those of its label maps, of {MAP_NAMES}; leave out --classes")
            unlabelled = [listed(file.parent, row["path"], (), _parse_boxes(row), row["id"], outside) for row in rows]
            return segmented(str(file), unlabelled, _label_maps(file, rows))
        column = "labels" if "labels" in rows[0] else "label"
        labels_of_rows = [[part.strip() for part in row[column].split(";") if part.strip()] for row in rows]
        multilabel = column == "labels" or any(len(labels) > 1 for labels in labels_of_rows)
        given = [label for labels in labels_of_rows for label in labels]
        named = lines(classes) if classes else None
        if column == "labels":
            _check_separators(file, {*given}, named or ())
        meaning = Labels.of(given) if named is None else Labels(named)
        samples = []
        for line, (row, labels) in enumerate(zip(rows, labels_of_rows, strict=True), 2):
            try:
                known = [number for label in labels if (number := meaning.number(label)) is not None]
                numbers = tuple(dict.fromkeys(known)) if known or multilabel else None
                boxes = _parse_boxes(row, numbers[0] if numbers and len(numbers) == 1 else -1)
            except ValueError as error:
                raise DataError(f"{file}, row {line}: {error}") from error
            sample = listed(file.parent, row["path"], numbers, boxes, row["id"], outside)
            if numbers is None and any(labels_of_rows):
                says = f"says {labels[0]!r}" if labels else "is empty"
                sample = replace(sample, problem=sample.problem or f"has no label (its column {says})")
            samples.append(sample)
    truths = {"segmentation": _label_maps(file, rows)} if "segmentation" in rows[0] else {}
    return ImageSet(source, samples, meaning.names, multilabel=multilabel, truths=truths)


def _label_maps(file: Path, rows: Sequence[Mapping[str, str]]) -> LabelMaps:
    name_file = file.parent / MAP_NAMES
    if not name_file.is_file():
        raise DataError(f"{file} names label maps, but there is no {name_file}; name their classes there, one a line")
    names = lines(name_file)
    files = {row["id"]: inside(file.parent, row["segmentation"], opening().outside) for row in rows}
    return LabelMaps(names, files, Indices.counted(len(names)))


def _read_table(file: Path) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text(file), newline=""), strict=True)
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    rows = list(reader)
    if missing := [name for name in ("id", "path") if name not in header]:
        raise ValueError(f"no column {', '.join(missing)} among {', '.join(header)[:200]}")
    if ("label" in header) == ("labels" in header) and ("label" in header or "segmentation" not in header):
        raise ValueError("expected one of the columns label and labels, or segmentation; label may be empty throughout")
    if not rows:
        raise ValueError("no row below the header")
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ValueError(f"row {line} has more or fewer values than the header")
        if not row["id"].strip():
            raise ValueError(f"row {line} has no id")
    return rows


def _check_separators(file: Path, labels: set[str], names: Collection[str]) -> None:
    """Refuse a label that looks like several, with something else than `;` between them, or like a list in Python.

    A label is split at `|` and tabs in any case; elsewhere if its parts are numbers, or are in other labels, too; at a space if
    they are other labels. `names` are those of known classes, which are never split.
    """
    known = {*labels, *names}
    for separator in SEPARATORS:
        parts_of = {label: [part.strip() for part in label.split(separator)] for label in known}
        n_labels = Counter(part for parts in parts_of.values() for part in {*parts})
        for label in sorted(labels.difference(names)):
            parts = parts_of[label]
            are_labels = known.issuperset(parts) if separator == " " else all(n_labels[part] > 1 for part in parts)
            is_joined = separator in "|\t" or are_labels or all(whole_number(part) is not None for part in parts)
            if (label[0], label[-1]) == ("[", "]") or (len(parts) > 1 and is_joined):
                raise DataError(
                    f"{file}: {label[:80]!r} among the labels looks like several, which `;` separates, e.g. cat;dog; if it is "
                    "the name of one class, give a file of class names (--classes)"
                )


def _parse_boxes(row: Mapping[str, str], label: int = -1) -> list[Box]:
    if "boxes" in row:
        boxes = [re.split(r"[\s,]+", part.strip()) for part in row["boxes"].split(";") if part.strip()]
    else:
        corners = [row[corner].strip() for corner in CORNERS] if row.keys() >= {*CORNERS} else []
        boxes = [corners] if any(corners) else []
    if wrong := [box for box in boxes if len(box) != 4]:
        raise ValueError(f"box {' '.join(wrong[0])[:80]!r} does not have four numbers x0 y0 x1 y1")
    return [Box(float(x0), float(y0), float(x1), float(y1), label) for x0, y0, x1, y1 in boxes]


FOLDER = Plain(image_folder, is_made_of_states=True)
CSV = Plain(csv_table)
