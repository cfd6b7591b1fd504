"""Whether features of an existing set can be used for a request."""

from extract.datasets import ImageSet
from extract.transform import as_options, differing_values
from store import FeatureSpec, FeatureStore, StoreError
from store.format.spec import EXTENDABLE_FIELDS


def check_same_encoder(base: FeatureStore, spec: FeatureSpec, used: str) -> None:
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
            f"give another set, or the options it was made with{transform_options(base.spec, spec)}"
        )


def check_extension(base: FeatureStore, spec: FeatureSpec, images: ImageSet) -> None:
    """Refuse a set that cannot be extended to this request.

    Raises:
        StoreError: `base` has another encoder, or other images than the first of these.
    """
    check_same_encoder(base, spec, "extended")
    if len(base) > len(images) or base.spec.data != images.digest_of(len(base)):
        raise StoreError(
            f"{base.path} cannot be extended: its {len(base)} images are not the first of the {len(images)} "
            f"in {images.source}; new images must come after those that are there"
        )


def transform_options(stored: FeatureSpec, requested: FeatureSpec) -> str:
    """Options that give the transform of a stored feature set, where another is requested: ` (--crop-pct 0.9)`."""
    names = differing_values(stored.transform, requested.transform)
    options = as_options(stored.transform, names)
    return f" ({options})" if options else ""
