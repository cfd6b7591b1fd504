"""Predictions side by side with the truth, over the images if they are available: label maps, objects, and boxes (Fig. 8).

What a command kept of one encoder to be shown is the `Entries` of its file: `data`, the digest of the data set, and `images`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from PIL import Image

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Gallery, Picture, Swatch, Text
from pipelines.report.dense import ORIGINAL, PROTOCOLS, held_out
from pipelines.report.galleries.images import DENSE, by_id, open_examples
from pipelines.report.galleries.pictures import (
    VOID,
    BoxOf,
    Outline,
    Pixels,
    choose_rows,
    colour_map,
    colours_of,
    crop_or_grey,
    draw_outlines,
    move_box,
    tint,
)
from pipelines.report.measured import Entries
from pipelines.report.reading import entries_of, read
from store import BeyondClsError
from store.truths.rle import decode

SEGMENT, DETECT, LOCALISE = "beyondcls segment", "beyondcls detect", "beyondcls localise"
LOCALISED = "--localised"  # of `beyondcls report`
TRUTH = "truth"
PREFERRED = ("linear", "logistic", "knn")  # where nothing was held out for all
N_CLASSES, N_OBJECTS = 5, 8  # in a text alternative
# Colours that colour-blind people can distinguish; [cls] is dashed as well.
TRUE = ("#2f8cff", 4, False)  # colour, width, dashed
MAPS = {("attention", "cls"): ("[cls]", ("#ff4020", 4, True)), ("probe", "abmilp"): ("AbMILP", ("#10d080", 4, False))}


def label_maps(inputs: Inputs, dataset: str, name: str, results: Sequence[Entries]) -> list[Block]:
    """A row for each chosen image: image, true map, that of each encoder by one protocol; a legend, and what is missing."""
    files = {one.encoder: one.folder / "maps/images.json" for one in results}
    kept, ids, notes = _read(inputs, files, f"{SEGMENT} --save-maps 6", read_label_maps, ("classes", "resolution", "images"))
    if not ids:
        return notes
    first = next(iter(kept.values()))
    shown = [one for one in results if one.encoder in kept]
    protocol, why = _protocol(shown, kept)
    if not protocol:
        return [*notes, Text(why, kind="notice")]
    images, missing = by_id(inputs.folders.dense_images.opened(dataset), DENSE, first.data, ids)
    truths = {image: _label_map(first, TRUTH, image) for image in ids}
    predicted = {e: {i: _label_map(one, protocol, i, truths[i].shape) for i in ids} for e, one in kept.items()}
    present = {label for maps in (truths, *predicted.values()) for m in maps.values() for label in np.unique(m).tolist()}
    colours = colours_of(present - {-1})

    def row(image: str) -> Iterator[Picture]:
        crop, flip = first.images[image].crop, first.images[image].flip
        truth, original = truths[image], images.get(image)
        if first.resolution == ORIGINAL:
            width, height = original.size if original else truth.shape[::-1]
            crop, flip = (0, 0, width, height), False
        base = crop_or_grey(original, crop, flip)
        yield Picture(base, f"test image {image}", (image,))
        yield _picture_of_map(truth, base, colours, first.classes, f"true label map of image {image}", "" if images else image)
        for encoder, of_images in predicted.items():
            labelled = truth >= 0
            right = 100 * float((of_images[image] == truth)[labelled].mean()) if labelled.any() else 0.0
            alt = f"label map of image {image} predicted from {encoder}, {right:.1f} % of its labelled pixels right"
            yield _picture_of_map(of_images[image], base, colours, first.classes, alt, f"{right:.1f} % right")

    seeds = "first seed, " if len(shown[0].protocols[protocol].seeds) > 1 else ""
    frame = "in pixels of the originals" if first.resolution == ORIGINAL else f"in a frame of {first.resolution} pixels"
    text = (
        f"Label maps of test images next to the predicted ones: {PROTOCOLS.get(protocol, protocol)}{why}, {seeds}{frame}. "
        "Below each, the share of its labelled pixels that are right."
    )
    legend = [Swatch(first.classes[label], colour) for label, colour in colours.items()]
    if -1 in present:
        legend.append(Swatch("void, or not shown by the view", "#{:02x}{:02x}{:02x}".format(*VOID)))
    columns, rows = ("image", "true label map", *kept), [tuple(row(image)) for image in ids]
    return _gallery(f"{name}-label-maps", f"{dataset}: label maps", text, columns, rows, missing, notes, tuple(legend))


def _picture_of_map(
    label_map: Int32[np.ndarray, "h w"], base: Pixels, colours: Mapping[int, str], classes: Sequence[str], alt: str, line: str
) -> Picture:
    """A map in colours, of the size of a picture; its text alternative names the largest classes."""
    labels, counts = np.unique(label_map[label_map >= 0], return_counts=True)
    order: list[Any] = np.argsort(-counts, kind="stable")[:N_CLASSES].tolist()
    shares = [f"{classes[labels[i]]} {100 * counts[i] / label_map.size:.0f} %" for i in order]
    image = Image.fromarray(colour_map(label_map, colours)).resize(base.shape[1::-1], Image.Resampling.NEAREST)
    return Picture(np.asarray(image), f"{alt}: {', '.join(shares)}", (line,) if line else ())


def _label_map(kept: Entries, protocol: str, image: str, shape: tuple[int, ...] | None = None) -> Int32[np.ndarray, "h w"]:
    """A predicted map, or the true one; -1 where a pixel has no class.

    Raises:
        BeyondClsError: the file is missing, damaged, or not of this shape.
    """

    def build(file: Path) -> Int32[np.ndarray, "h w"]:
        with Image.open(file) as picture:
            values = np.asarray(picture).astype(np.int32)
        if values.ndim != 2:
            raise ValueError(f"it has {values.ndim} axes, expected a class for each pixel")
        labels = np.where(values == kept.unseen, -1, values)
        if labels.max(initial=-1) >= len(kept.classes):
            raise ValueError(f"class {labels.max()}, expected one of {len(kept.classes)}")
        return labels

    file = kept.folder / protocol / kept.images[image].file
    label_map = read(file, SEGMENT, build)
    if shape not in (None, label_map.shape):
        raise BeyondClsError(
            f"{file} is {list(label_map.shape)} pixels, the true label map {list(shape or ())}; "
            f"run `{SEGMENT} --save-maps` again"
        )
    return label_map


def _protocol(results: Sequence[Entries], kept: Mapping[str, Entries]) -> tuple[str, str]:
    """The protocol whose maps are shown, the same for all encoders, and why it is that one; "" and the reason if there is none.

    It is the one with the highest mIoU on held-out images, averaged over encoders: test images choose nothing.
    """
    common = [
        name
        for name in PREFERRED
        if all(name in one.protocols and (kept[one.encoder].folder / name).is_dir() for one in results)
    ]
    if not common:
        return "", "No protocol was saved for all encoders, so no label maps are shown."
    by_name = {name: [held_out(one.protocols[name]) for one in results] for name in common}
    sums = {name: sum(filter(None, values)) for name, values in by_name.items() if None not in values}
    if len(common) == 1 or len(sums) < len(common):
        return common[0], ""
    return max(sums, key=lambda name: sums[name]), ", which is best on held-out images"


def objects(inputs: Inputs, dataset: str, name: str, results: Sequence[Entries]) -> list[Block]:
    """A row for each chosen image: image, objects, what was detected from each encoder; a legend, and what is missing."""
    kept, ids, notes = _read(
        inputs, {one.encoder: one.folder / "examples.json" for one in results}, DETECT, read_objects, ("classes",)
    )
    if not ids:
        return notes
    first, score = next(iter(kept.values())), inputs.examples.score
    for encoder, one in kept.items():
        highest = max((thing.score for image in one.images.values() for thing in image.detections), default=0.0)
        if highest < score:
            below = (
                f"No detection of {encoder} in these images has a score of {score:g}; the highest is {highest:.2f} (--score)."
            )
            notes.append(Text(below, kind="notice"))
    images, missing = by_id(inputs.folders.dense_images.opened(dataset), DENSE, first.data, ids)
    found = {e: {i: [t for t in one.images[i].detections if t.score >= score] for i in ids} for e, one in kept.items()}
    shown = [first.images[image].objects for image in ids] + [things for of_all in found.values() for things in of_all.values()]
    colours = colours_of(thing.label for things in shown for thing in things)

    def row(image: str) -> Iterator[Picture]:
        (height, width), true = first.images[image].size, first.images[image].objects
        base = crop_or_grey(images.get(image), (0, 0, width, height))
        yield Picture(base, f"test image {image}", (image,))
        n = f"{len(true)} object{'s' * (len(true) != 1)}"
        alt = f"image {image} with {n}: {_describe_things(true, first.classes)}"
        yield Picture(_overlay_things(base, true, (height, width), colours), alt, (n,) if images else (image, n))
        for encoder, of_images in found.items():
            alt = f"image {image}, detected from {encoder}: {_describe_things(of_images[image], first.classes, scores=True)}"
            drawn = _overlay_things(base, of_images[image], (height, width), colours)
            yield Picture(drawn, alt, (f"{len(of_images[image])} detected",))

    text = (
        f"Objects of test images, and what is detected with a score of {score:g} or more (first seed; --score sets another). "
        "Objects that stand for several (crowds) are outlined by dashes; detections need not find them."
    )
    legend = tuple(Swatch(first.classes[label], colour) for label, colour in colours.items())
    columns, rows = ("image", "objects", *kept), [tuple(row(image)) for image in ids]
    return _gallery(f"{name}-objects", f"{dataset}: objects and detections", text, columns, rows, missing, notes, legend)


def _overlay_things(base: Pixels, things: Sequence[Entries], size: tuple[int, int], colours: Mapping[int, str]) -> Pixels:
    """Masks tinted and boxes outlined in the colours of their classes; the surest on top."""
    ordered = sorted(things, key=lambda thing: thing.score)
    picture = base
    for thing in ordered:
        if thing.counts:
            picture = tint(picture, decode(thing.counts.encode(), size), colours[thing.label])
    part = (0, 0, size[1], size[0])
    return draw_outlines(picture, [Outline(move_box(t.box, part, base), colours[t.label], dashed=t.crowd) for t in ordered])


def _describe_things(things: Sequence[Entries], classes: Sequence[str], scores: bool = False) -> str:
    """The first of them in words."""
    words = [classes[t.label] + (f" {100 * t.score:.0f} %" if scores else "") for t in things[:N_OBJECTS]]
    more = [f"{len(things) - N_OBJECTS} more"] if len(things) > N_OBJECTS else []
    return ", ".join([*words, *more]) or "nothing"


def boxes(inputs: Inputs, files: Mapping[str, Path]) -> list[Block]:
    """A row for each chosen image, a column for each encoder: what its maps predict.

    Args:
        files: boxes.json by encoder.
    """
    kept, ids, notes = _read(inputs, files, LOCALISE, read_boxes)
    if not ids:
        return notes
    first, folders = next(iter(kept.values())), inputs.folders
    if folders.localised is not None:
        image_set = open_examples(folders.localised, LOCALISED, split=folders.localised_split)
    else:
        described = {"split": folders.split, "form": folders.form, "classes": folders.classes}
        image_set = open_examples(folders.images, LOCALISED, folders.pixels, **described)
    images, missing = by_id(image_set, LOCALISED, first.data, ids)

    def drawn(one: Entries, image: str, predicted: Iterable[Entries] = ()) -> Pixels:
        located, frame = one.images[image], (0, 0, one.size, one.size)
        base = crop_or_grey(images.get(image), located.crop, located.flip)
        looks = [*((box, TRUE) for box in located.true), *((one.box, one.look) for one in predicted)]
        return draw_outlines(base, [Outline(move_box(box, frame, base), *look) for box, look in looks])

    def row(image: str) -> Iterator[Picture]:
        alt = f"image {image} with {len(first.images[image].true)} true box(es)"
        yield Picture(drawn(first, image), alt, (image,))
        for encoder, one in kept.items():
            predicted = one.images[image].predicted
            lines = tuple(f"{p.name} IoU {p.iou:.2f}" for p in predicted)
            alt = f"image {image} as {encoder} saw it, true and predicted boxes: {', '.join(lines)}"
            yield Picture(drawn(one, image, predicted), alt, lines)

    text = (
        "As Fig. 8 of the paper. Blue: boxes of the data set. Red, dashed: the box that the mean [cls] attention predicts; "
        "green: that of AbMILP's weights (first seed). Each encloses the largest contour at the threshold that is best for all "
        "images at IoU 0.5 (MaxBoxAcc); below it, its IoU with the true box that it meets best. An object is found from IoU "
        "0.5 on. A picture shows what is compared: the part of the image that the encoder saw."
    )
    columns, rows = ("image", *kept), [tuple(row(image)) for image in ids]
    return _gallery("localisation-boxes", "Predicted boxes next to true ones", text, columns, rows, missing, notes)


def _read(
    inputs: Inputs, files: Mapping[str, Path], command: str, build: Callable[[Entries], Entries], alike: Sequence[str] = ()
) -> tuple[dict[str, Entries], list[str], list[Block]]:
    """What was kept of each encoder, of those with the images of the first; ids of images to show; notes on other encoders.

    Args:
        alike: what else encoders that are shown together have in common.
    """

    def content(file: Path) -> Entries:
        return Entries(build(entries_of(json.loads(file.read_text(encoding="utf-8")))), folder=file.parent)

    def common(one: Entries) -> Any:
        return one.data, list(one.images), [one[name] for name in alike]

    kept = {name: read(file, command, content) for name, file in files.items() if file.is_file()}
    if not (inputs.examples.n or inputs.examples.ids):
        return {}, [], []
    first = next((one for one in kept.values() if one.images), None)
    same = {name: one for name, one in kept.items() if first and common(one) == common(first)}
    notes = [
        f"What was kept of {name} is of other images, classes or pixels, and is not shown."
        for name, one in kept.items()
        if one.images and name not in same
    ]
    if without := [name for name in files if name not in kept]:
        notes.insert(0, f"Nothing of {', '.join(without)} was kept to be shown; run `{command}` for it again.")
    ids = list(first.images) if first else []
    return same, [ids[row] for row in choose_rows(ids, inputs.examples)], [Text(note, kind="notice") for note in notes]


def _gallery(
    name: str,
    title: str,
    text: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[Picture, ...]],
    missing: str,
    notes: Sequence[Block],
    legend: tuple[Swatch, ...] | None = None,
) -> list[Block]:
    """What is shown and what is missing, and the pictures; without their first column where images are missing, if what is
    laid over them says it all, as those with a legend do."""
    alone = [Text(f"What belongs to the images is drawn without them. {missing}", kind="notice")] if missing else []
    if missing and legend is not None:
        columns, rows = columns[1:], [row[1:] for row in rows]
    gallery = Gallery(name, title, (), columns, tuple(rows), legend or (), large=legend is not None)
    return [Text(text, kind="note"), *notes, *alone, gallery]


def read_label_maps(kept: Entries) -> Entries:
    """An images.json: the file of the maps of each image, the part of the original that they show, whether that is mirrored."""
    images = {
        str(one["id"]): Entries(file=Path(str(one["file"])).name, crop=_box(one["crop"]), flip=bool(one["flip"]))
        for one in kept["images"]
    }
    of_all = {"data": kept["data"], "resolution": str(kept["resolution"]), "unseen": int(kept["unseen"])}
    return Entries(of_all, classes=kept["classes"], images=images)


def read_objects(kept: Entries) -> Entries:
    """An examples.json: height and width of each image, its objects, and what was detected, in pixels of the original."""
    classes, images = kept["classes"], {}
    for one in kept["images"]:
        height, width = map(int, one["size"])
        found = {k: tuple(_decode(thing, classes, (height, width)) for thing in one[k]) for k in ("objects", "detections")}
        images[str(one["id"])] = Entries(found, size=(height, width))
    return Entries(data=kept["data"], classes=classes, images=images)


def _decode(one: Entries, classes: Sequence[str], size: tuple[int, int]) -> Entries:
    """`counts`: COCO's compressed run lengths of its mask; `crowd`: it stands for several objects, which need not be found."""
    label, counts = int(one["label"]), one.get("counts")
    if not 0 <= label < len(classes):
        raise ValueError(f"class {label}, expected one of {len(classes)}")
    if counts is not None:
        decode(counts.encode("ascii"), size)  # raises where it is not of this image
    about = {"score": float(one.get("score", 1)), "crowd": bool(one.get("crowd", False))}
    return Entries(about, label=label, box=_box(one["box"]), counts=counts)


def read_boxes(kept: Entries) -> Entries:
    """A boxes.json: boxes are in pixels of the frame, which shows `crop`; without images where none of its maps is drawn."""
    ids = tuple(map(str, kept["ids"]))
    drawn = [(*MAPS[key], m) for m in kept["maps"] if (key := (m["source"], m["name"])) in MAPS]
    of_images = (kept["crops"], kept["flips"], kept["boxes"], *(m[k] for *_, m in drawn for k in ("boxes", "ious")))
    for values in of_images:
        if len(values) != len(ids):
            raise ValueError(f"{len(values)} entries, expected one for each of {len(ids)} images")
    images = {
        image: Entries(
            crop=_box(kept["crops"][i]),
            flip=bool(kept["flips"][i]),
            true=tuple(map(_box, kept["boxes"][i])),
            predicted=[
                Entries(name=name, box=_box(m["boxes"][i]), iou=float(m["ious"][i]), look=look) for name, look, m in drawn
            ],
        )
        for i, image in enumerate(ids)
    }
    return Entries(data=kept["data"], images=images if drawn else {}, size=int(kept["size"]))


def _box(content: Sequence[float]) -> BoxOf:
    x0, y0, x1, y1 = map(float, content)
    return x0, y0, x1, y1
