"""Which images of one feature set another holds already."""

import numpy as np

from extract.compatible import check_same_encoder
from extract.datasets import ImageSet
from extract.older import older_names
from extract.requests import Request
from store import FeatureStore, StoreError
from store.format.layout import DIGEST


def rows_in(store: FeatureStore, request: Request) -> np.ndarray:
    """[n_images] int64: the row of each image in a set of the same encoder, -1 where it is not in it.

    Images are the same if their bytes are: by the digest of the whole set, or by that of each image, which older sets lack.
    Random views are drawn by the image's id, so with them the id must be the same, too. Maps of older sets get their current
    names.

    Raises:
        StoreError: the set has another encoder, transform or dtype; or it has no digests, and not all of its images are among
            these.
    """
    check_same_encoder(store, request.spec, "taken over from")
    add_current_names(store, request.encoder.n_blocks)
    n, images = len(request.images), request.images
    if len(store) <= n and store.spec.data == images.digest_of(len(store)):
        return np.where(np.arange(n) < len(store), np.arange(n), -1)
    if DIGEST in store.arrays:
        return _rows_by_digest(store, images, store.spec.n_views > 1 and request.n_views > 1)
    rows = {sample.id: row for row, sample in enumerate(images.samples)}
    order = [rows.get(image_id, -1) for image_id in store.ids]
    if -1 in order or images.part(order).digest != store.spec.data:
        raise StoreError(
            f"{store.where} has no digests of its images, as current sets have, and they are not all among those of "
            f"{images.source}: which of them are the same is not known; extract without it"
        )
    store_rows = np.full(n, -1)
    store_rows[order] = np.arange(len(store))
    return _without_problems(store_rows, store, images)


def add_current_names(store: FeatureStore, n_blocks: int) -> None:
    """Give maps of an older set their current names, beside those that they have.

    Args:
        n_blocks: of its encoder.
    """
    store.arrays |= {name: store.array(older) for name, older in older_names(store, n_blocks - 1).items()}


def _rows_by_digest(store: FeatureStore, images: ImageSet, with_ids: bool) -> np.ndarray:
    digests = store.array(DIGEST).all()
    names = store.ids if with_ids else [""] * len(store)
    rows = {(name, digest.tobytes()): row for row, (name, digest) in enumerate(zip(names, digests, strict=True))}
    ids = [sample.id if with_ids else "" for sample in images.samples]
    store_rows = [rows.get((name, digest.tobytes()), -1) for name, digest in zip(ids, images.image_digests, strict=True)]
    return _without_problems(np.array(store_rows, np.int64), store, images)


def _without_problems(rows: np.ndarray, store: FeatureStore, images: ImageSet) -> np.ndarray:
    """Rows without those of images that are invalid in the store or now: these are read again."""
    sound = np.array([not sample.problem for sample in images.samples])
    return np.where(sound & (rows >= 0) & store.valid[rows], rows, -1)
