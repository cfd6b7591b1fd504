"""What of a feature set can be kept: whether it is of the same encoder, which images it shares, and what is outdated."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from extract.datasets import DataError, ImageSet
from extract.encoders import known_pretraining
from extract.requests import Request
from extract.transform import as_options, differing_values
from store import ArrayLayout, FeatureSpec, FeatureStore, StoreError
from store.format.layout import DIGEST, KINDS, ArrayName
from store.format.pretraining import NAMES, Pretraining
from store.format.spec import EXTENDABLE_FIELDS

COMPARED = ("norm_eps", "classes", "cls_caution")  # attributes that are brought up to date


def open_existing(out: Path) -> FeatureStore | None:
    """The set at `out`, if there is one.

    Raises:
        StoreError: it cannot be opened.
    """
    return FeatureStore.open(out) if (out / "zarr.json").exists() else None


def occupied_message(stored: FeatureStore, spec: FeatureSpec) -> str:
    """Why a set cannot be written where another one is."""
    add = ", or add to it with --extend" if set(stored.spec.differences(spec)) <= set(EXTENDABLE_FIELDS) else ""
    options = _transform_options(stored.spec, spec)
    same = f", or the options it was made with{options}" if options else ""
    return (
        f"{stored.where} holds a feature set with key {stored.spec.key}, this one has {spec.key} "
        f"({stored.spec.explained(spec)} differ); give another --out, or remove it first{add}{same}, or let this one take its "
        "place with --update"
    )


def check_extension(base: FeatureStore, spec: FeatureSpec, images: ImageSet) -> None:
    """Refuse a set that cannot be extended to this request.

    Raises:
        StoreError: `base` has another encoder, or other images than the first of these.
    """
    _check_same_encoder(base, spec, "extended")
    if len(base) > len(images) or base.spec.data != images.digest_of(len(base)):
        raise StoreError(
            f"{base.path} cannot be extended: its {len(base)} images are not the first of the {len(images)} "
            f"in {images.source}; new images must come after those that are there"
        )


def _check_same_encoder(base: FeatureStore, spec: FeatureSpec, used: str) -> None:
    """Refuse a set that cannot serve as a source of features.

    Raises:
        StoreError: `base` has another encoder, transform or dtype, or crops whose branches were dropped at another rate; the
            message says that it cannot be `used`.
    """
    have_crops = min(base.spec.n_views, spec.n_views) > 1
    ignored = [name for name in EXTENDABLE_FIELDS if name != "drop_path" or not have_crops]
    if differ := base.spec.explained(spec, ignored):
        raise StoreError(
            f"{base.where} cannot be {used}: {differ} differ; "
            f"give another set, or the options it was made with{_transform_options(base.spec, spec)}"
        )


def _transform_options(stored: FeatureSpec, requested: FeatureSpec) -> str:
    """Options that give the transform of a stored feature set, where another is requested: ` (--crop-pct 0.9)`."""
    options = as_options(stored.transform, differing_values(stored.transform, requested.transform))
    return f" ({options})" if options else ""


def rows_in(store: FeatureStore, request: Request) -> np.ndarray:
    """[n_images] int64: the row whose features each image has in a set of the same encoder, -1 where there is none.

    Images are the same if their bytes are, whatever they are called and however they are labelled: by the digest of each, or of
    the whole set in older ones. Random views are drawn by the image's id, so with them the id must be the same, too. Invalid
    rows whose images can be read now are left out. Maps of older sets (`attention/cls/view0`, of the last block) get their
    current names beside those that they have.

    Raises:
        StoreError: the set has another encoder, transform or dtype; or it has no digests, and not all of its images are among
            these.
    """
    _check_same_encoder(store, request.spec, "taken over from")
    store.arrays |= {
        str(replace(parts, block=request.encoder.n_blocks - 1)): store.array(name)
        for name, parts in ((name, ArrayName.parse(name)) for name in store.arrays)
        if parts.kind == "attention" and parts.block is None and parts.view is not None
    }
    images, n = request.images, len(request.images)
    if len(store) <= n and store.spec.data == images.digest_of(len(store)):
        rows = np.where(np.arange(n) < len(store), np.arange(n), -1)
        rows[readable_again(store, images)] = -1  # others stay invalid, with what was noted
        return rows
    if DIGEST in store.arrays:
        rows = _rows_by_content(store, images, store.spec.n_views > 1 and request.n_views > 1)
    else:
        rows = _rows_by_id(store, images)
    return np.where(images.samples.is_sound & (rows >= 0) & store.valid[rows], rows, -1)


def readable_again(store: FeatureStore, images: ImageSet) -> list[int]:
    """Rows of a set of these very images that are invalid although their images can be decoded now."""
    rows = []
    for row in (note["row"] for note in store.attributes["invalid"]):
        if row not in images.samples.problems:
            with suppress(DataError):
                images.image(row)
                rows.append(row)
    return rows


def _rows_by_content(store: FeatureStore, images: ImageSet, with_ids: bool) -> np.ndarray:
    """Of equal images each has a row of its own, as far as there are rows: first its present one, then in order."""
    digests, n = store.array(DIGEST).all(), min(len(store), len(images))
    stays = np.zeros(len(images), bool)
    stays[:n] = (digests[:n] == images.image_digests[:n]).all(1)
    if with_ids:
        stays[:n] &= [id_ == stored_id for id_, stored_id in zip(images.samples.ids, store.ids, strict=False)]
    rows = np.where(stays, np.arange(len(images)), -1)
    ids = store.ids if with_ids else [""] * len(store)
    usable: dict[tuple[str, bytes], list[int]] = {}
    is_taken = np.zeros(len(store), bool)
    is_taken[:n] = stays[:n]
    for row in (*np.flatnonzero(store.valid & is_taken), *np.flatnonzero(store.valid & ~is_taken)[::-1]):
        usable.setdefault((ids[row], digests[row].tobytes()), []).append(int(row))
    for i in np.flatnonzero(~stays):
        same = usable.get((images.samples.ids[i] if with_ids else "", images.image_digests[i].tobytes()), [-1])
        rows[i] = same.pop() if len(same) > 1 else same[0]
    return rows


def _rows_by_id(store: FeatureStore, images: ImageSet) -> np.ndarray:
    rows = {id_: row for row, id_ in enumerate(images.samples.ids)}
    order = [rows.get(image_id, -1) for image_id in store.ids]
    if -1 in order or images.part(order).digest != store.spec.data:
        raise StoreError(
            f"{store.where} has no digests of its images, as current sets have, and they are not all among those of "
            f"{images.source}: which of them are the same is not known; extract without it"
        )
    store_rows = np.full(len(images), -1)
    store_rows[order] = np.arange(len(store))
    return store_rows


def pooling_note(base: FeatureStore, spec: FeatureSpec) -> str:
    """What becomes of a set from before its encoder's own pooling was kept, if `spec` is that set with it; else empty."""
    pooled = replace(base.spec, vectors=(*base.spec.vectors, "pooled"))
    if base.spec.is_pooled or spec.key not in (pooled.key, replace(pooled, maps=spec.maps).key):
        return ""
    return (
        f"{base.where} lacks the vectors that its encoder's own pooling gives; they are added, all else is taken over, and the "
        f"key becomes {spec.key}"
    )


def is_current(stored: FeatureStore, attributes: Mapping[str, Any]) -> bool:
    """Whether nothing has to be written: this copy lacks no array and no kind's group, and its attributes are current.

    Kinds that are newer than a set have no group in it, which a pipeline that names all kinds would miss.
    """
    whole = len(stored.arrays) == len(stored.attributes["arrays"]) and all(map(stored.place.has_folder, KINDS))
    same = all(stored.attributes.get(name) == attributes.get(name) for name in COMPARED)
    return whole and same and training_difference(stored, attributes) is None


def kept_attributes(
    base: FeatureStore | None, request: Request, layouts: Sequence[ArrayLayout], attributes: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Attributes of a set that is repaired or completed: an older one keeps its attributes, so that its receipt still fits."""
    if base is None or base.spec.key != request.spec.key:
        return attributes
    left_out: set[str] = set()
    if "encoder" in base.attributes:
        records_training = NAMES[0] in base.attributes or training_difference(base, attributes) is not None
        left_out |= {"encoder_flops"} - set(base.attributes)
    else:  # its zarr.json is lost; a set without digests of images is older than these attributes
        records_training = any(layout.name == DIGEST for layout in layouts)
    left_out |= set() if records_training else {*NAMES, "encoder_flops"}
    return {name: value for name, value in attributes.items() if name not in left_out}


def training_difference(stored: FeatureStore, attributes: Mapping[str, Any]) -> str | None:
    """How a set's record of its encoder's training differs from what is known now; None where it does not.

    A set that is older than these attributes is taken to record what the registry knows of its encoder's name, so that it
    need not be written again because of them, nor checked again by what depends on it.
    """
    recorded = Pretraining.from_dict(stored.attributes) or known_pretraining(str(stored.attributes["encoder"]))
    current = Pretraining.from_dict(attributes)
    if current is None or recorded == current:
        return None
    return f"{stored.where} records this training of its encoder: {recorded.in_words}; now it is: {current.in_words}"
