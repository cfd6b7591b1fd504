"""What an extraction begins with: a feature set that is there already, parts of another one, or nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from extract.encoders import known_pretraining
from extract.requests import Request, check_extension, transform_options
from extract.reuse import rows_in
from store import ArrayLayout, FeatureStore, StoreError
from store.format.layout import DIGEST
from store.format.pretraining import NAMES, Pretraining
from store.format.spec import EXTENDABLE_FIELDS
from store.writing.repair import salvage
from store.writing.writer import discard_staging

Existing = Literal["refuse", "update", "extend", "repair"]
Agrees = Callable[..., bool]  # (set, rows of the images in it): whether a sample agrees; raises or says so if not
COMPARED = ("norm_eps", "classes", "cls_caution")  # attributes that are brought up to date


@dataclass(frozen=True)
class Start:
    """What is written, and arguments of the `FeatureWriter`: layouts of the set, and what it takes over."""

    request: Request
    layouts: Sequence[ArrayLayout]
    base: FeatureStore | None = None
    base_rows: Int64[np.ndarray, "N"] | None = None
    skip: Sequence[tuple[str, int]] = ()
    replaces: bool = False


def start(
    request: Request,
    out: Path,
    existing: Existing,
    source: FeatureStore | None,
    older: FeatureStore | None,
    shard_rows: int | None,
    attributes: Mapping[str, Any],
    agrees: Agrees,
    warn: Callable[[str], None],
    is_first: bool = True,
) -> FeatureStore | Start:
    """The feature set at `out`, if it is what is asked for; else what a new one begins with.

    Args:
        existing, source, older, shard_rows: as for `extract.run.extract`.
        attributes: that the set will have.
        agrees: compares a set with what the program computes now.
        is_first: of several tasks, the first compares a set that is finished.

    Raises:
        StoreError: `out` holds another set, or one that cannot be extended or mended; or `source` does not fit.
    """
    if existing == "repair":
        base, layouts, skip = salvage(out, request.spec, request.layouts)
        return Start(request, layouts, base, None, skip, replaces=True)
    there = _opened(out, existing, warn) if (out / "zarr.json").exists() else None
    replaces = existing == "update"
    candidates = [store for store in (source, older) if store is not None]
    if there is not None and there.spec.key in request.keys:
        discard_staging(out, there.spec.key)
        if not is_first or agrees(there):
            if is_first and existing != "update" and (note := trained_otherwise(there, attributes)):
                warn(f"{note}. It stays as it is; --update writes this down")
            if existing != "update" or _is_current(there, attributes):
                return there
            return _completed(request.named_as(there), there)
        replaces = True
    elif there is not None and existing == "extend":
        check_extension(there, request.spec, request.images)
        agrees(there, rows_in(there, request))
        return Start(request, request.layouts(there.shard_rows, there), there, None, (), replaces=True)
    elif there is not None and existing == "update":
        candidates.append(there)
    elif there is not None:
        raise StoreError(_occupied(there, request))
    for candidate in candidates:
        try:
            rows = rows_in(candidate, request)
        except StoreError:
            if candidate is source:
                raise
            continue
        in_order = bool((rows == np.arange(len(rows)))[rows >= 0].all())
        layouts = request.layouts(candidate.shard_rows if shard_rows is None and in_order else shard_rows, candidate)
        shares = (rows >= 0).any() and any(layout.name in candidate.arrays for layout in layouts)
        if shares and agrees(candidate, rows):
            return Start(request, layouts, candidate, rows, (), replaces)
    return Start(request, request.layouts(shard_rows), replaces=replaces)


def _opened(out: Path, existing: Existing, warn: Callable[[str], None]) -> FeatureStore | None:
    """The set at `out`; None if it is to give way to another and nothing of it can be used."""
    try:
        there = FeatureStore.open(out)
    except StoreError as error:
        if existing != "update":
            raise
        warn(f"{error}. It is extracted again; what is there gives way when that is finished")
        return None
    return there if "images" in there.kinds or existing != "update" else None


def _is_current(there: FeatureStore, attributes: Mapping[str, Any]) -> bool:
    """Whether nothing is to be written: this copy lacks no array, and says of itself what it would say now."""
    whole = len(there.arrays) == len(there.attributes["arrays"])
    same = all(there.attributes.get(name) == attributes.get(name) for name in COMPARED)
    return whole and same and trained_otherwise(there, attributes) is None


def as_older(begun: Start, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Attributes of a set that is mended or completed: an older one says what it said, so that its receipt stays that of it."""
    base = begun.base
    if base is None or base.spec.key != begun.request.spec.key:
        return attributes
    if "encoder" in base.attributes:
        says_it = NAMES[0] in base.attributes or trained_otherwise(base, attributes) is not None
    else:  # its zarr.json is lost; a set without digests of images is older than these attributes
        says_it = any(layout.name == DIGEST for layout in begun.layouts)
    return attributes if says_it else {name: value for name, value in attributes.items() if name not in NAMES}


def trained_otherwise(there: FeatureStore, attributes: Mapping[str, Any]) -> str | None:
    """In what a set says of its encoder's training something else than is known now; None where it says the same.

    A set that is older than these attributes says what the registry knows of its encoder's name, so that it need not be
    written again for their sake, nor be checked by all that depends on it.
    """
    before = Pretraining.from_dict(there.attributes) or known_pretraining(str(there.attributes["encoder"]))
    now = Pretraining.from_dict(attributes)
    if now is None or before == now:
        return None
    return f"{there.where} says that its encoder was trained thus: {before.in_words}; now it is: {now.in_words}"


def _completed(request: Request, there: FeatureStore) -> Start:
    """The same set again, whole; without digests of images if it is an older one that lacks them."""
    layouts = request.layouts(there.shard_rows, there)
    layouts = [layout for layout in layouts if layout.name != DIGEST or DIGEST in there.attributes["arrays"]]
    return Start(request, layouts, there, None, (), replaces=True)


def _occupied(there: FeatureStore, request: Request) -> str:
    """Why a set cannot be written where another one is."""
    spec = request.spec
    differ = there.spec.differences(spec)
    add = ", or add to it with --extend" if set(differ) <= set(EXTENDABLE_FIELDS) else ""
    options = transform_options(there.spec, spec)
    same = f", or the options it was made with{options}" if options else ""
    return (
        f"{there.where} holds a feature set with key {there.spec.key}, this one has {spec.key} "
        f"({there.spec.explained(spec)} differ); give another --out, or remove it first{add}{same}, or let this one take its "
        "place with --update"
    )
