"""Small feature sets written by tests: tokens with a class signal, no encoder needed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter


def write_features(
    path: Path,
    n: int = 96,
    n_tokens: int = 9,
    dim: int = 8,
    n_classes: int = 3,
    *,
    seed: int = 0,
    weights: str = "w",
    cls: bool = True,
    classes: Sequence[str] | None = None,
    invalid: Sequence[int] = (),
    signal: float = 3.0,
    views: int = 1,
    blocks: Sequence[int] = (1,),
    registers: int = 0,
    multilabel: bool = False,
    maps: Sequence[str] = ("cls",),
    map_blocks: Sequence[int] | None = None,
    norm: bool = False,
    crops: bool = False,
    shard_rows: int = 64,
    order: Sequence[int] | None = None,
    labels: Sequence[int] | np.ndarray | None = None,
    vectors: Sequence[int] = (),
    pooled: bool = False,
) -> FeatureStore:
    """A feature set whose class shows in one random patch of each image, and faintly in [cls].

    Views beside the first, and blocks beside the last, are noise, different for each.

    Args:
        signal: what is added to the channel of the class.
        invalid: rows that could not be read.
        multilabel: image i has the classes i % n_classes and, every other time, i // 2 % n_classes.
        maps: attention maps, of three heads.
        map_blocks: whose maps are kept; all of `blocks` by default.
        norm: a final norm that is not the identity.
        crops: boxes, in pixels of the original.
        order: of the images: row r holds what else is in row order[r], id and label included.
        labels: instead of 0, 1, 2, …, 0, 1, …; with `multilabel` [n, n_classes].
        vectors: blocks that have [cls] and the average patch token; of blocks without patch tokens they show the class.
        pooled: what the encoder's own pooling gives: the class, more clearly.
    """
    generator = np.random.default_rng(seed)
    label = np.arange(n) % n_classes
    patch = generator.normal(size=(n, n_tokens, dim))
    spot = generator.integers(n_tokens, size=n)
    patch[np.arange(n), spot, label] += signal
    valid = np.ones(n, np.uint8)
    valid[list(invalid)] = 0
    ids = np.array([list(f"{i:06d}".encode()) for i in range(n)], np.uint8)
    last = max(blocks)
    arrays = {
        "images/id": (ids, ("image", "byte")),
        "images/label": (label.astype(np.int64), ("image",)),
        "images/size": (np.full((n, 2), 32, np.int32), ("image", "side")),
        "images/valid": (valid, ("image",)),
        f"patch/block{last}/view0": (patch.astype(np.float16), ("image", "patch", "channel")),
        "statistics/cls_self/view0": (generator.random((n, 2, 3)).astype(np.float32), ("image", "block", "head")),
        f"attention/cls/block{last}/view0": (generator.random((n, 3, n_tokens)).astype(np.float16), ("image", "head", "patch")),
    }
    if "cls" not in maps:
        del arrays[f"attention/cls/block{last}/view0"]
    if cls:
        token = generator.normal(size=(n, dim))
        token[np.arange(n), label] += signal / 3
        arrays[f"cls/block{last}/view0"] = (token.astype(np.float16), ("image", "channel"))
    if multilabel:
        several = np.zeros((n, n_classes), np.uint8)
        several[np.arange(n), label] = 1
        several[np.arange(0, n, 2), np.arange(0, n, 2) // 2 % n_classes] = 1
        del arrays["images/label"]
        arrays["images/labels"] = (several if labels is None else np.asarray(labels, np.uint8), ("image", "class"))
    elif labels is not None:
        arrays["images/label"] = (np.asarray(labels, np.int64), ("image",))
    if crops:
        boxes = np.tile(np.array([2, 2, 30, 30], np.float32), (n, 1)) * valid[:, None]
        arrays["images/crop/view0"] = (boxes, ("image", "side"))
    if "centre" in maps:
        values = generator.random((n, 3, n_tokens)).astype(np.float16)
        arrays[f"attention/centre/block{last}/view0"] = (values, ("image", "head", "patch"))
    if registers:
        token = generator.normal(size=(n, registers, dim))
        arrays[f"registers/block{last}/view0"] = (token.astype(np.float16), ("image", "register", "channel"))
    arrays |= _beside(arrays, [block for block in blocks if block != last], last, views, generator)
    arrays |= _vectors(arrays, vectors, views, label, signal, generator)
    if pooled:
        arrays |= {f"pooled/view{view}": _shown(label, dim, signal, generator) for view in range(views)}
    kept_blocks = blocks if map_blocks is None else map_blocks
    dropped = [f"/block{block}/" for block in blocks if block not in kept_blocks]
    arrays = {name: a for name, a in arrays.items() if not (name.startswith("attention") and any(b in name for b in dropped))}
    if order is not None:
        arrays = {name: (values[list(order)], dims) for name, (values, dims) in arrays.items()}
    layouts = [ArrayLayout(name, values.shape, values.dtype.name, dims, shard_rows) for name, (values, dims) in arrays.items()]
    data = f"data{seed}" if order is None else f"data{seed} in another order"
    kept = tuple(f"{row}/block{block}" for row in maps for block in kept_blocks)
    named = [f"{kind}/block{block}" for kind in ("average", *["cls"] * cls) for block in vectors] + ["pooled"] * pooled
    spec = FeatureSpec(weights, "{}", {"input_size": [3, 32, 32]}, data, n, tuple(blocks), ("cls_self",), kept, views)
    spec = replace(spec, vectors=tuple(named))
    last_norm = {"norm/weight": np.linspace(0.5, 2, dim, dtype=np.float32), "norm/bias": np.ones(dim, np.float32)}
    attributes = {"encoder": f"encoder-{weights}", "norm_eps": 1e-6 if norm else None, "problems": []}
    attributes["classes"] = list(classes) if classes else None
    values = {name: values for name, (values, _) in arrays.items()}
    return write_arrays(path, spec, layouts, values, attributes, last_norm if norm else None)


def write_arrays(
    path: Path,
    spec: FeatureSpec,
    layouts: Sequence[ArrayLayout],
    values: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    constants: Mapping[str, np.ndarray] | None = None,
    invalid: Sequence[Mapping[str, Any]] = (),
) -> FeatureStore:
    """A feature set of these values. Without fsync: power does not fail here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        writer = FeatureWriter(path, spec, list(layouts), constants)
        for unit in writer.missing_units():
            start, stop = layouts[0].rows(unit)
            notes = [note for note in invalid if start <= note["row"] < stop]
            writer.write_unit(unit, {a.name: values[a.name][start:stop] for a in layouts}, notes)
        writer.finish(dict(attributes))
    return FeatureStore.open(path)


def _vectors(
    arrays: Mapping[str, tuple[np.ndarray, tuple[str, ...]]],
    blocks: Sequence[int],
    views: int,
    label: np.ndarray,
    signal: float,
    generator: np.random.Generator,
) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
    """Averages of these blocks: of their patch tokens, where there are any; and [cls] of those that have none."""
    made = {}
    dim = next(values.shape[-1] for name, (values, _) in arrays.items() if name.startswith("patch"))
    with_cls = any(name.startswith("cls") for name in arrays)
    for at in (f"block{block}/view{view}" for block in blocks for view in range(views)):
        if (patch := arrays.get(f"patch/{at}")) is not None:
            made[f"average/{at}"] = patch[0].astype(np.float32).mean(1), ("image", "channel")
            continue
        made[f"average/{at}"] = _shown(label, dim, signal / 2, generator)
        if with_cls:
            values, dims = _shown(label, dim, signal / 2, generator)
            made[f"cls/{at}"] = values.astype(np.float16), dims
    return made


def _shown(label: np.ndarray, dim: int, signal: float, generator: np.random.Generator) -> tuple[np.ndarray, tuple[str, ...]]:
    """Vectors with `signal` in the channel of the class."""
    values = generator.normal(size=(len(label), dim))
    values[np.arange(len(label)), label] += signal
    return values.astype(np.float32), ("image", "channel")


def _beside(
    arrays: dict[str, tuple[np.ndarray, tuple[str, ...]]],
    blocks: Sequence[int],
    last: int,
    views: int,
    generator: np.random.Generator,
) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
    """Other blocks, and other views of all blocks, of the features that are there."""
    made = {}
    for name, (values, dims) in arrays.items():
        if not name.endswith("/view0") or name.startswith("images"):
            continue
        named = [name, *(name.replace(f"block{last}", f"block{block}") for block in blocks if f"block{last}" in name)]
        for other in (n.replace("view0", f"view{view}") for n in named for view in range(views)):
            if other != name:
                made[other] = (np.abs(generator.normal(size=values.shape)).astype(values.dtype), dims)
    return made
