"""Which images of one feature set another holds already."""

import numpy as np

from extract.compatible import check_same_encoder
from extract.datasets import DataError, ImageSet
from extract.older import older_names
from extract.requests import Request
from store import FeatureStore, StoreError
from store.format.layout import DIGEST


def rows_in(store: FeatureStore, request: Request) -> np.ndarray:
    """[n_images] int64: the row whose features each image has in a set of the same encoder, -1 where there is none.

    Images are the same if their bytes are, whatever they are called and however they are labelled: by the digest of each, or of
    the whole set in older ones. Random views are drawn by the image's id, so with them the id must be the same, too. Invalid
    rows whose images can be read now are left out. Maps of older sets get their current names.

    Raises:
        StoreError: the set has another encoder, transform or dtype; or it has no digests, and not all of its images are among
            these.
    """
    check_same_encoder(store, request.spec, "taken over from")
    add_current_names(store, request.encoder.n_blocks)
    images, n = request.images, len(request.images)
    if len(store) <= n and store.spec.data == images.digest_of(len(store)):
        rows = np.where(np.arange(n) < len(store), np.arange(n), -1)
        rows[readable_again(store, images)] = -1  # others stay invalid, with what was noted
        return rows
    if DIGEST in store.arrays:
        rows = _rows_by_content(store, images, store.spec.n_views > 1 and request.n_views > 1)
    else:
        rows = _rows_by_id(store, images)
    sound = np.array([not sample.problem for sample in images.samples])
    return np.where(sound & (rows >= 0) & store.valid[rows], rows, -1)


def readable_again(store: FeatureStore, images: ImageSet) -> list[int]:
    """Rows of a set of these very images that are invalid although their images can be decoded now."""
    rows = [note["row"] for note in store.attributes["invalid"]]
    return [row for row in rows if not images.samples[row].problem and _is_readable(images, row)]


def _is_readable(images: ImageSet, row: int) -> bool:
    try:
        images.image(row)
    except DataError:
        return False
    return True


def add_current_names(store: FeatureStore, n_blocks: int) -> None:
    """Give maps of an older set their current names, beside those that they have.

    Args:
        n_blocks: of its encoder.
    """
    store.arrays |= {name: store.array(older) for name, older in older_names(store, n_blocks - 1).items()}


def _rows_by_content(store: FeatureStore, images: ImageSet, with_ids: bool) -> np.ndarray:
    """Of equal images each has a row of its own, as far as there are rows: first its present one, then in order."""
    digests, n = store.array(DIGEST).all(), min(len(store), len(images))
    stays = np.zeros(len(images), bool)
    stays[:n] = (digests[:n] == images.image_digests[:n]).all(1)
    if with_ids:
        stays[:n] &= [sample.id == stored_id for sample, stored_id in zip(images.samples, store.ids, strict=False)]
    rows = np.where(stays, np.arange(len(images)), -1)
    ids = store.ids if with_ids else [""] * len(store)
    usable: dict[tuple[str, bytes], list[int]] = {}
    is_taken = np.zeros(len(store), bool)
    is_taken[:n] = stays[:n]
    for row in (*np.flatnonzero(store.valid & is_taken), *np.flatnonzero(store.valid & ~is_taken)[::-1]):
        usable.setdefault((ids[row], digests[row].tobytes()), []).append(int(row))
    for i in np.flatnonzero(~stays):
        same = usable.get((images.samples[i].id if with_ids else "", images.image_digests[i].tobytes()), [-1])
        rows[i] = same.pop() if len(same) > 1 else same[0]
    return rows


def _rows_by_id(store: FeatureStore, images: ImageSet) -> np.ndarray:
    rows = {sample.id: row for row, sample in enumerate(images.samples)}
    order = [rows.get(image_id, -1) for image_id in store.ids]
    if -1 in order or images.part(order).digest != store.spec.data:
        raise StoreError(
            f"{store.where} has no digests of its images, as current sets have, and they are not all among those of "
            f"{images.source}: which of them are the same is not known; extract without it"
        )
    store_rows = np.full(len(images), -1)
    store_rows[order] = np.arange(len(store))
    return store_rows
