"""Stage one: every image once through a frozen encoder, into a feature set.

What an interrupted run has written is kept and used. A set that exists is not computed again: a sample of it, and of all that
is taken over from another set, is compared with what the program computes now (`extract.sample`). If they agree it stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from extract.annotations import is_annotation, stale_annotations
from extract.attributes import attributes_of, is_current, training_difference
from extract.compatible import check_extension
from extract.datasets import ImageSet, open_images
from extract.encoders import Encoder
from extract.existing import SHARED_REMEDY, Comparison, occupied_message, open_existing, open_replaceable
from extract.older import pooling_note
from extract.requests import Request
from extract.reuse import readable_again, rows_in
from extract.settings import Settings
from extract.truths import lacks_truths_alone, with_truths
from extract.writing import Start
from store import BeyondClsError, FeatureStore, StoreError
from store.format.layout import DIGEST
from store.shown import Bars
from store.writing.publishing import Found, discard_staging, refused_sets
from store.writing.repair import salvage

DEFAULTS = Settings()


def extract(encoder: Encoder, images: Any, out: str | Path, *, bars: Bars | None = None, **options: Any) -> FeatureStore | None:
    """Write the feature set of `images` to `out`, or keep the one that is there, and open it.

    `create` in one call: for `update`, `extend` and `repair` make a `Request` first.

    Args:
        images: an `ImageSet`, or what `open_images` takes: the name of a source, a Dataset of PyTorch, arrays, …
        bars: shows the progress, as `beyondcls.progress_bar` does; in place of the option `progress`.
        options: arguments of `Request.resolve` (blocks, statistics, maps, views, dtype, shard_rows) and of `Settings`
            (batch_size, workers, on_error, progress, …).

    Returns:
        The feature set; None if this process was stopped before it was finished, or has joined another.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: as `create`.
        BeyondClsError: an option that cannot be.
    """
    if not isinstance(images, ImageSet):
        images = open_images(images, bars=bars)
    of_settings = {field.name for field in fields(Settings)} & options.keys()
    request = Request.resolve(encoder, images, **{name: options[name] for name in options.keys() - of_settings})
    settings = Settings(**{name: options[name] for name in of_settings})
    if bars is None:
        return create(request, Path(out), settings)
    if "progress" in options:
        raise BeyondClsError("bars and progress were both given; bars shows what progress would be called with")
    with bars(encoder.name, len(images), "images") as progress:
        return create(request, Path(out), replace(settings, progress=progress))


def create(
    request: Request,
    out: Path,
    settings: Settings = DEFAULTS,
    *,
    source: FeatureStore | None = None,
    older: FeatureStore | None = None,
    shared: bool = False,
) -> FeatureStore | None:
    """Write a feature set where there is none, or keep the very same.

    Args:
        out: its folder.
        source: another set of this encoder, from which its images, blocks, statistics, maps and views are taken over.
        older: likewise a set that this one follows, wherever it is; nothing is taken over if its encoder is another.
        shared: others may use the set at `out`, so it is not extracted again.

    Returns:
        The feature set; None if this process was stopped before it was finished, or has joined another.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: `out` is occupied by another feature set; another process has written other values; an existing set, or
            `source`, holds other features than the program computes now; or `source` has another encoder.
        BeyondClsError: tokens beyond the range of float16; too little memory for an image.
    """
    attributes = attributes_of(request, settings)
    found, comparison = Found.at(out), Comparison(request, settings, source, shared)
    stored = open_existing(out)
    if stored is not None and stored.spec.key not in request.keys:
        raise StoreError(occupied_message(stored, request))
    if stored is not None and _is_confirmed(stored, found, comparison):
        _refuse_stale(stored, request, "--update writes them anew, and keeps all features")
        _warn_of_differences(stored, request, attributes, settings, "; --update writes this down")
        return _keep(stored, settings)
    return _begin(comparison, (source, older), replace(found, replaces=stored is not None)).write(out, attributes, settings)


def update(
    request: Request,
    out: Path,
    settings: Settings = DEFAULTS,
    *,
    source: FeatureStore | None = None,
    older: FeatureStore | None = None,
    shared: bool = False,
) -> FeatureStore | None:
    """Write a feature set that takes the place of the one at `out` when it is finished, taking over what both have.

    Arguments, result and errors are those of `create`, but no other set can be in the way.
    """
    attributes = attributes_of(request, settings)
    found, comparison = Found.at(out), Comparison(request, settings, source, shared)
    stored = open_replaceable(out, settings.warn)
    candidates = [source, older]
    if stored is None or stored.spec.key not in request.keys:
        candidates.append(stored)
    elif _is_confirmed(stored, found, comparison):
        stale, readable = stale_annotations(stored, request.images), readable_again(stored, request.images)
        if is_current(stored, attributes) and not stale and not readable:
            return _keep(stored, settings)
        if stale and settings.is_first:
            settings.warn(f"{_stale_message(stored, request, stale)}; they are written anew")
        return _completion(request, stored, found).write(out, attributes, settings)
    return _begin(comparison, candidates, found).write(out, attributes, settings)


def create_at(request: Request, address: str, settings: Settings = DEFAULTS) -> FeatureStore | None:
    """Write a feature set straight to an object store, at its final address; nothing is taken over from another set.

    Several tasks need nothing in common but that.

    Args:
        address: by convention ROOT/NAME-KEY.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: the service cannot write conditionally, or fails; another set is there; another task computes other values.
        BeyondClsError: tokens beyond the range of float16; too little memory for an image.
    """
    return Start(request, request.layouts()).write(address, attributes_of(request, settings), settings)


def extend(
    request: Request, out: Path, settings: Settings = DEFAULTS, *, source: FeatureStore | None = None
) -> FeatureStore | None:
    """Add blocks, statistics, maps, views, and images that follow its own, to the set at `out`; only what it lacks is computed.

    Result and errors are those of `create`.

    Raises:
        StoreError: the set has another encoder, or other images than the first of these.
    """
    found, stored = Found.at(out), open_existing(out)
    if stored is not None:
        request = request.added_to(stored)
    if stored is None or stored.spec.key in request.keys:
        return create(request, out, settings, source=source)
    attributes = attributes_of(request, settings)
    check_extension(stored, request.spec, request.images)
    if lacks_truths_alone(stored, request):
        return with_truths(request, stored, found).write(out, attributes, settings)
    rows, layouts = rows_in(stored, request), request.layouts(shard_rows=stored.shard_rows)
    base = stored if Comparison(request, settings).agrees(stored, rows) else None
    start = Start(request, layouts, base, None if base is None else rows, replaces=found)
    return start.write(out, attributes, settings)


def repair(request: Request, out: Path, settings: Settings = DEFAULTS) -> FeatureStore | None:
    """Compute the damaged parts of the set at `out` again, and those of images that can be read now; only these.

    Raises:
        StoreError: there is none, or it is of another request.
        BeyondClsError: there are several tasks, or an engine.
    """
    if settings.n_tasks > 1 or settings.engine is not None:
        raise BeyondClsError("one process repairs a feature set; leave out the number of tasks, or give --on here")
    attributes = attributes_of(request, settings)
    found, request = Found.at(out), request.named_as_at(out)
    base, layouts, skip = salvage(out, request.spec, partial(request.layouts, None), request.constants)
    rows = np.arange(len(base))
    rows[readable_again(base, request.images)] = -1
    return Start(request, layouts, base, rows, skip, replaces=found).write(out, attributes, settings)


def confirm(request: Request, stored: FeatureStore, settings: Settings = DEFAULTS) -> FeatureStore:
    """A finished set of the request that others may use, if a sample agrees with what the program computes now.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: it does not agree.
    """
    attributes = attributes_of(request, settings)
    if settings.is_first:
        Comparison(request, settings, shared=True).agrees(stored)
    _refuse_stale(stored, request, SHARED_REMEDY)
    _warn_of_differences(stored, request, attributes, settings, ", for others may use it")
    return _keep(stored, settings)


def _is_confirmed(stored: FeatureStore, found: Found, comparison: Comparison) -> bool:
    """Whether the very set that is asked for may stay; of several tasks, only the first compares it."""
    if comparison.settings.joins is not None:
        return comparison.agrees(stored)
    is_confirmed = not comparison.settings.is_first or comparison.agrees(stored)
    if not is_confirmed:
        found.check()  # before anything is discarded that was refused its place
    discard_staging(found.path, stored.spec.key)
    return is_confirmed


def _keep(stored: FeatureStore, settings: Settings) -> FeatureStore:
    settings.progress(len(stored))
    return stored


def _refuse_stale(stored: FeatureStore, request: Request, remedy: str) -> None:
    """Refuse a set that has other labels, say, than its images, as earlier versions may have written it.

    Raises:
        StoreError: it has.
    """
    if stale := stale_annotations(stored, request.images):
        raise StoreError(f"{_stale_message(stored, request, stale)}. {remedy}")


def _stale_message(stored: FeatureStore, request: Request, stale: Sequence[str]) -> str:
    return f"{stored.where} holds other annotations ({', '.join(stale)}) than {request.images.source} has"


def _warn_of_differences(
    stored: FeatureStore, request: Request, attributes: Mapping[str, Any], settings: Settings, why: str
) -> None:
    if not settings.is_first:
        return
    if note := training_difference(stored, attributes):
        settings.warn(f"{note}. It stays as it is{why}")
    if rows := readable_again(stored, request.images):
        settings.warn(
            f"{stored.where} has {len(rows)} invalid rows whose images can be read now, the first is {rows[0]}. It stays as it "
            f"is{why}"
        )


def _begin(comparison: Comparison, candidates: Sequence[FeatureStore | None], found: Found) -> Start:
    """What a new set begins with: what the first of the candidates has that shares anything with it, or nothing.

    The first of all is the very set, if it was finished before and something was in its way.

    Raises:
        StoreError: the source that the user gave does not fit; or what a candidate has is not what is computed now.
    """
    request = comparison.request
    for refused in refused_sets(found.path.parent, request.spec.key):
        if comparison.finds_equal(refused):
            layouts = request.layouts(refused, refused.shard_rows if request.shard_rows is None else None)
            return Start(request, layouts, refused, replaces=found)
    for candidate in candidates:
        if candidate is None:
            continue
        try:
            rows = rows_in(candidate, request)
        except StoreError:
            if candidate is comparison.source:
                raise
            continue
        if lacks_truths_alone(candidate, request):
            return with_truths(request, candidate, found)
        in_order = bool((rows == np.arange(len(rows)))[rows >= 0].all())
        shard_rows = candidate.shard_rows if request.shard_rows is None and in_order else None
        layouts = request.layouts(shard_rows=shard_rows)
        shares = (rows >= 0).any() and any(a.name in candidate.arrays and not is_annotation(a.name) for a in layouts)
        if shares and comparison.agrees(candidate, rows):
            if comparison.settings.is_first and (note := pooling_note(candidate, request.spec)):
                comparison.settings.warn(note)
            return Start(request, layouts, candidate, rows, replaces=found)
    return Start(request, request.layouts(), replaces=found)


def _completion(request: Request, stored: FeatureStore, found: Found) -> Start:
    """What it takes to write the same set again, whole; without digests of images if it is an older one that lacks them."""
    request = request.named_as(stored)
    layouts = request.layouts(stored, stored.shard_rows)
    layouts = [layout for layout in layouts if layout.name != DIGEST or DIGEST in stored.attributes["arrays"]]
    return Start(request, layouts, stored, rows_in(stored, request), replaces=found)
