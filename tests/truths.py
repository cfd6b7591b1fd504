"""Feature sets with truths: a set that is there, copied with label maps and instances."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from store import ArrayLayout, FeatureStore
from store.truths.reading import Instance, Segment, TruthColumns, instance_columns, segment_columns
from store.truths.rle import encode
from store.truths.view import patch_labels
from tests.features import write_arrays

SIZE = (32, 32)  # height and width of the input, where a set does not say it


def segments_of(label_map: np.ndarray) -> list[Segment]:
    """Segments of a label map, -1 void."""
    labels = np.unique(label_map[label_map >= 0])
    return [
        Segment(int(label), counts) for label, counts in zip(labels, encode(label_map == labels[:, None, None]), strict=True)
    ]


def instances_of(masks: np.ndarray, labels: Sequence[int], crowds: Sequence[bool] = ()) -> list[Instance]:
    """Instances of masks [n, h, w], none of which is empty, with the boxes around them."""
    instances = []
    for i, (mask, counts) in enumerate(zip(masks, encode(masks), strict=True)):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
        instances.append(Instance(labels[i], box, float(mask.sum()), bool(crowds[i]) if crowds else False, counts))
    return instances


def with_truths(
    store: FeatureStore,
    path: Path,
    *,
    maps: Sequence[np.ndarray] | None = None,
    map_classes: Sequence[str] = (),
    instances: Sequence[Sequence[Instance]] | None = None,
    instance_classes: Sequence[str] = (),
    sizes: Sequence[tuple[int, int]] | None = None,
    changed: Mapping[str, np.ndarray] | None = None,
) -> FeatureStore:
    """A copy of a set with truths; its views show whole images, squashed, unless it says otherwise.

    Args:
        maps: label map of each image, -1 void.
        instances: of each image.
        sizes: height and width of each image; by default those of its map, or of the input.
        changed: arrays in place of those of the set, of its crops and flips.
    """
    shown = [m.shape for m in maps] if maps is not None else [SIZE] * len(store)
    sizes = shown if sizes is None else sizes
    layouts = {name: array.layout for name, array in store.arrays.items() if array.layout.has_image_axis}
    values = {name: store.arrays[name].stored(np.arange(len(store))) for name in layouts}
    rows = store.shard_rows
    size_of_input = tuple(store.spec.transform["input_size"][1:])
    layouts["images/size"] = ArrayLayout("images/size", (len(store), 2), "int32", ("image", "side"), rows)
    values["images/size"] = np.array(sizes, np.int32)
    for view in range(store.spec.n_views):
        crop, flip = f"images/crop/view{view}", f"images/flip/view{view}"
        if crop not in layouts:
            layouts[crop] = ArrayLayout(crop, (len(store), 4), "float32", ("image", "side"), rows)
            values[crop] = np.array([(0, 0, width, height) for height, width in sizes], np.float32)
            layouts[flip] = ArrayLayout(flip, (len(store),), "uint8", ("image",), rows)
            values[flip] = np.zeros(len(store), np.uint8)
    values |= changed or {}
    constants = {name: array.all() for name, array in store.arrays.items() if not array.layout.has_image_axis}
    columns: dict[str, tuple[TruthColumns, Sequence[str]]] = {}
    if maps is not None:
        columns["segmentation"] = segment_columns(map(segments_of, maps)), map_classes
        for view in range(store.spec.n_views):
            name = f"images/patch_label/view{view}"
            shown_as = zip(maps, values[f"images/crop/view{view}"], values[f"images/flip/view{view}"], strict=True)
            labels = [patch_labels(m, crop, bool(flip), size_of_input, store.grid) for m, crop, flip in shown_as]
            layouts[name] = ArrayLayout(name, (len(store), len(labels[0])), "int16", ("image", "patch"), rows)
            values[name] = np.stack(labels)
    if instances is not None:
        columns["instances"] = instance_columns(instances), instance_classes
    for one, _ in columns.values():
        constants |= one.constants
    spec = replace(store.spec, truths={name: one.digest(classes) for name, (one, classes) in columns.items()})
    attributes = {k: v for k, v in store.attributes.items() if k not in ("key", "spec", "invalid", "arrays", "digest")}
    attributes["truth_classes"] = {name: list(classes) for name, (_, classes) in columns.items()}
    return write_arrays(path, spec, list(layouts.values()), values, attributes, constants, store.attributes["invalid"])
