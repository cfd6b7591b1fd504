"""Stage one: every image once through a frozen encoder, into a feature set.

What an interrupted run has written is kept and used. A set that exists is not computed again: a sample of it, and of all that
is taken over from another set, is compared with what the program computes now (`extract.sample`). If they agree it stays.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from extract.datasets import DataError, ImageSet, open_images
from extract.encoders import Encoder
from extract.layouts import is_annotation, is_patch_label, stale_annotations
from extract.requests import Request
from extract.sample import check_by_sample
from extract.transform import as_options, differing_values
from extract.writing import Settings, Task, attributes_of
from store import ArrayLayout, BeyondClsError, FeatureSpec, FeatureStore, StoreError
from store.errors import too_old
from store.format.layout import DIGEST, KINDS
from store.format.pretraining import Pretraining, pretraining_fields
from store.format.spec import EXTENDABLE_FIELDS
from store.format.unfinished import base_at
from store.places import LocalFolder
from store.shown import Bars
from store.writing.publishing import Found, discard_staging, refused_sets
from store.writing.shard import salvage

DEFAULTS = Settings()
COMPARED = ("norm_eps", "classes", "cls_caution")  # attributes that are brought up to date
# What to do about a set that is not what the program computes now.
REMEDY = (
    "If the change is meant, extract it again: --recompute, or recompute: true under that encoder in the parameter file; else "
    "undo the change"
)
REMEDY_OF_TASKS = (
    "One process can extract it again: leave out the number of tasks; or remove it (beyondcls store rm), and all extract it"
)
REMEDY_OF_SOURCE = "Leave out --from, and all is extracted; or undo the change"
REMEDY_OF_SHARED = (
    "If the change is meant, remove that set (beyondcls store rm, or at an object store its folder) and extract again; others "
    "may use it. Else undo the change"
)


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
    run = _Run(request, settings, Found.at(out), source, shared)
    if (stored := _existing(out)) is None:
        run.found = replace(run.found, replaces=False)
    elif stored.spec.key != request.spec.key:
        spec = request.spec
        add = ", or add to it with --extend" if set(stored.spec.differences(spec)) <= set(EXTENDABLE_FIELDS) else ""
        options = _transform_options(stored.spec, spec)
        same = f", or the options it was made with{options}" if options else ""
        raise StoreError(
            f"{stored.where} holds a feature set with key {stored.spec.key}, this one has {spec.key} "
            f"({stored.spec.explained(spec)} differ); give another --out, or remove it first{add}{same}, or let this one take "
            "its place with --update"
        )
    elif run.confirms(stored):
        return run.keep(stored, "--update writes them anew, and keeps all features", "; --update writes this down")
    return run.write_anew([source, older])


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
    run = _Run(request, settings, Found.at(out), source, shared)
    try:
        stored = _existing(out)
    except StoreError as error:
        settings.warn(f"{error}. It is extracted again; what is there is replaced when that is finished")
        stored = None
    if stored is None or "images" not in stored.kinds:  # nothing of it can be used
        return run.write_anew([source, older])
    if stored.spec.key != request.spec.key:
        return run.write_anew([source, older, stored])
    if not run.confirms(stored):
        return run.write_anew([source, older])
    stale, readable = stale_annotations(stored, request.images), _readable_again(stored, request)
    if run.is_current(stored) and not stale and not readable:
        settings.progress(len(stored))
        return stored
    if stale and settings.is_first:
        settings.warn(f"{run.stale_message(stored, stale)}; they are written anew")
    return run.write(request.layouts(stored, stored.shard_rows), stored, rows_in(stored, request))  # the same set, whole


def create_at(request: Request, address: str, settings: Settings = DEFAULTS) -> FeatureStore | None:
    """Write a feature set straight to an object store, at its final address (by convention ROOT/NAME-KEY); nothing is taken
    over from another set, and several tasks need nothing in common but that.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: the service cannot write conditionally, or fails; another set is there; another task computes other values.
        BeyondClsError: tokens beyond the range of float16; too little memory for an image.
    """
    return Task(request, settings, address, request.layouts()).write(attributes_of(request, settings))


def extend(
    request: Request, out: Path, settings: Settings = DEFAULTS, *, source: FeatureStore | None = None
) -> FeatureStore | None:
    """Add blocks, statistics, maps, views, and images that follow its own, to the set at `out`; only what it lacks is computed.

    Result and errors are those of `create`.

    Raises:
        StoreError: the set has another encoder, or other images than the first of these.
    """
    found, stored = Found.at(out), _existing(out)
    if stored is not None:
        request = request.added_to(stored)
    if stored is None or stored.spec.key == request.spec.key:
        return create(request, out, settings, source=source)
    run, images = _Run(request, settings, found), request.images
    _check_same_encoder(stored, request.spec, "extended")
    if len(stored) > len(images) or stored.spec.data != images.digest_of(len(stored)):
        raise StoreError(
            f"{stored.path} cannot be extended: its {len(stored)} images are not the first of the {len(images)} "
            f"in {images.source}; new images must come after those that are there"
        )
    if run.lacks_truths_alone(stored):
        return run.add_truths(stored)
    rows, layouts = rows_in(stored, request), request.layouts(shard_rows=stored.shard_rows)
    return run.write(layouts, stored, rows) if run.agrees(stored, rows) else run.write(layouts)


def repair(request: Request, out: Path, settings: Settings = DEFAULTS) -> FeatureStore | None:
    """Compute the damaged parts of the set at `out` again, and those of images that can be read now; only these.

    Raises:
        StoreError: there is none, or it is of another request.
        BeyondClsError: there are several tasks, or an engine.
    """
    if settings.n_tasks > 1 or settings.engine is not None:
        raise BeyondClsError("one process repairs a feature set; leave out the number of tasks, or give --on here")
    run = _Run(request, settings, Found.at(out))
    base, layouts, skip = salvage(out, request.spec, partial(request.layouts, None))
    rows = np.arange(len(base))
    rows[_readable_again(base, request)] = -1
    return run.write(layouts, base, rows, skip)


def confirm(request: Request, stored: FeatureStore, settings: Settings = DEFAULTS) -> FeatureStore:
    """A finished set of the request that others may use, if a sample agrees with what the program computes now.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: it does not agree.
    """
    run = _Run(request, settings, Found(Path(stored.where)), shared=True)  # nothing is replaced
    if settings.is_first:
        run.agrees(stored)
    return run.keep(stored, REMEDY_OF_SHARED, ", for others may use it")


@dataclass
class _Run:
    """What becomes of the sets that are there, compared with what the program computes now.

    Attributes:
        found: what was at the place of the set at first.
        source: the set that the user wants features taken over from.
        shared: others may use the sets, so none is replaced.
    """

    request: Request
    settings: Settings
    found: Found
    source: FeatureStore | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        self.attributes = attributes_of(self.request, self.settings)

    def agrees(self, store: FeatureStore, rows: np.ndarray | None = None, is_needed: bool = True) -> bool:
        """Whether a sample of a set agrees; if not, it is to be extracted again. That is an error where the set is in the way
        (`is_needed`), unless the user has said what to do.
        """
        settings = self.settings
        if settings.joins is not None:  # the process that has begun the set has compared what it takes rows over from
            base = base_at(LocalFolder(settings.joins))
            return base is not None and Path(base).absolute() == Path(store.where).absolute()
        self.request.images.check_files()
        check = check_by_sample(self.request, store, rows, batch_size=settings.batch_size, workers=settings.workers)
        if check.agrees:
            settings.checked(store, check)
        elif is_needed and settings.recompute and not self.shared and settings.n_tasks == 1:
            settings.warn(f"{store.where}: {check.described}; it is extracted again")
        elif is_needed:
            remedy = REMEDY_OF_TASKS if settings.recompute else REMEDY
            remedy = REMEDY_OF_SOURCE if store is self.source else REMEDY_OF_SHARED if self.shared else remedy
            raise StoreError(f"{store.where} is not what the program computes now: {check.described}. {remedy}")
        return check.agrees

    def confirms(self, stored: FeatureStore) -> bool:
        """Whether the very set that is asked for may stay; of several tasks, only the first compares it."""
        if self.settings.joins is not None:
            return self.agrees(stored)
        is_confirmed = not self.settings.is_first or self.agrees(stored)
        if not is_confirmed:
            self.found.check()  # before anything is discarded that was refused its place
        discard_staging(self.found.path, stored.spec.key)
        return is_confirmed

    def keep(self, stored: FeatureStore, remedy: str, why: str) -> FeatureStore:
        """A set that stays as it is, and `why`, with a warning where it differs in what need not be computed.

        It may have other labels, say, than its images: then `remedy` follows.
        """
        if stale := stale_annotations(stored, self.request.images):
            raise StoreError(f"{self.stale_message(stored, stale)}. {remedy}")
        if self.settings.is_first:
            if note := _training_difference(stored, self.attributes):
                self.settings.warn(f"{note}. It stays as it is{why}")
            if rows := _readable_again(stored, self.request):
                self.settings.warn(
                    f"{stored.where} has {len(rows)} invalid rows whose images can be read now, the first is {rows[0]}. It "
                    f"stays as it is{why}"
                )
        self.settings.progress(len(stored))
        return stored

    def stale_message(self, stored: FeatureStore, stale: Sequence[str]) -> str:
        return f"{stored.where} holds other annotations ({', '.join(stale)}) than {self.request.images.source} has"

    def is_current(self, stored: FeatureStore) -> bool:
        """Whether nothing has to be written: this copy lacks no array and no kind's group, and its attributes are current."""
        whole = len(stored.arrays) == len(stored.attributes["arrays"]) and all(map(stored.place.has_folder, KINDS))
        same = all(stored.attributes.get(name) == self.attributes.get(name) for name in COMPARED)
        return whole and same and _training_difference(stored, self.attributes) is None

    def write(
        self,
        layouts: Sequence[ArrayLayout],
        base: FeatureStore | None = None,
        rows: np.ndarray | None = None,
        skip: Sequence[tuple[str, int]] = (),
    ) -> FeatureStore | None:
        return Task(self.request, self.settings, self.found.path, layouts, base, rows, skip, self.found).write(self.attributes)

    def write_anew(self, candidates: Sequence[FeatureStore | None]) -> FeatureStore | None:
        """Write a set that begins with what the first of the candidates has that shares anything with it, or with nothing.

        The first of all is the very set, if it was finished before and something was in its way.
        """
        request = self.request
        for refused in refused_sets(self.found.path.parent, request.spec.key):
            if self.agrees(refused, is_needed=False):
                return self.write(request.layouts(refused, request.shard_rows or refused.shard_rows), refused)
        for candidate in (one for one in candidates if one is not None):
            try:
                rows = rows_in(candidate, request)
            except StoreError:
                if candidate is self.source:
                    raise
                continue
            if self.lacks_truths_alone(candidate):
                return self.add_truths(candidate)
            in_order = bool((rows == np.arange(len(rows)))[rows >= 0].all())
            layouts = request.layouts(shard_rows=candidate.shard_rows if request.shard_rows is None and in_order else None)
            shares = (rows >= 0).any() and any(a.name in candidate.arrays and not is_annotation(a.name) for a in layouts)
            if shares and self.agrees(candidate, rows):
                return self.write(layouts, candidate, rows)
        return self.write(request.layouts())

    def lacks_truths_alone(self, stored: FeatureStore) -> bool:
        """Whether a set has all features of the request, and differs from it in truths only."""
        is_whole = len(stored.arrays) >= len(stored.attributes["arrays"])
        return is_whole and self.request.spec.differences(stored.spec) == ["truths"]

    def add_truths(self, stored: FeatureStore) -> FeatureStore | None:
        """Write a set again with truths. Its features are not compared: they are taken as they are; only images that it could
        not read are decoded and encoded.
        """
        kept = [stored.arrays[name].layout for name in stored.attributes["arrays"]]
        layouts = [a for a in kept if a.has_image_axis and not is_patch_label(a.name)]
        layouts += self.request.truth_layouts(stored.shard_rows)
        return self.write(layouts, stored, rows_in(stored, self.request))


def _existing(out: Path) -> FeatureStore | None:
    return FeatureStore.open(out) if (out / "zarr.json").exists() else None


def _check_same_encoder(base: FeatureStore, spec: FeatureSpec, used: str) -> None:
    """Refuse a set that cannot be `used` as a source of features: of another encoder, transform or dtype, or with crops whose
    branches were dropped at another rate.
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

    Images are the same if their bytes are, whatever they are called and however they are labelled. Random views are drawn by
    the image's id, so with them the id must be the same, too. Invalid rows whose images can be read now are left out.

    Raises:
        StoreError: the set has another encoder, transform or dtype; or it has no digests of its images.
    """
    _check_same_encoder(store, request.spec, "taken over from")
    images, n = request.images, len(request.images)
    if len(store) <= n and store.spec.data == images.digest_of(len(store)):
        rows = np.where(np.arange(n) < len(store), np.arange(n), -1)
        rows[_readable_again(store, request)] = -1  # others stay invalid, with what was noted
        return rows
    if DIGEST not in store.arrays:
        raise StoreError(too_old(store.where, "no digests of its images", f"an array {DIGEST}", "extract without it"))
    rows = _rows_by_content(store, images, store.spec.n_views > 1 and request.n_views > 1)
    return np.where(images.samples.is_sound & (rows >= 0) & store.valid[rows], rows, -1)


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


def _readable_again(store: FeatureStore, request: Request) -> list[int]:
    """Rows of a set of these very images that are invalid although their images can be decoded now, and shown whole."""
    rows = []
    for row in (note["row"] for note in store.attributes["invalid"]):
        if row not in request.images.samples.problems:
            with suppress(DataError):
                request.image(row)
                rows.append(row)
    return rows


def _training_difference(stored: FeatureStore, attributes: Mapping[str, Any]) -> str | None:
    """How a set's record of its encoder's training differs from what is known now; None where it does not."""
    recorded, current = (Pretraining.from_dict(pretraining_fields(one)) for one in (stored.attributes, attributes))
    if recorded == current:
        return None
    return f"{stored.where} records this training of its encoder: {recorded.in_words}; now it is: {current.in_words}"
