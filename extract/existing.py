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
Agrees = Callable[..., bool]  # (set, rows of the images in it): whether a sample agrees; raises or warns if not
COMPARED = ("norm_eps", "classes", "cls_caution")  # attributes that are brought up to date


@dataclass(frozen=True)
class Start:
    """What has to be written, and arguments of the `FeatureWriter`: layouts of the set, and what it takes over."""

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
    """The feature set at `out`, if it is what is asked for; else what a new one starts from.

    Args:
        existing, source, older, shard_rows: as for `extract.run.extract`.
        attributes: that the set will have.
        agrees: compares a set with what the program computes now.
        is_first: of several tasks, only the first compares a finished set.

    Raises:
        StoreError: `out` holds another set, or one that cannot be extended or repaired; or `source` does not fit.
    """
    if existing == "repair":
        base, layouts, skip = salvage(out, request.spec, request.layouts)
        return Start(request, layouts, base, None, skip, replaces=True)
    stored = _open_existing(out, existing, warn) if (out / "zarr.json").exists() else None
    replaces = existing == "update"
    candidates = [store for store in (source, older) if store is not None]
    if stored is not None and stored.spec.key in request.keys:
        discard_staging(out, stored.spec.key)
        if not is_first or agrees(stored):
            if is_first and existing != "update" and (note := training_difference(stored, attributes)):
                warn(f"{note}. It stays as it is; --update writes this down")
            if existing != "update" or _is_current(stored, attributes):
                return stored
            return _completion(request.named_as(stored), stored)
        replaces = True
    elif stored is not None and existing == "extend":
        check_extension(stored, request.spec, request.images)
        agrees(stored, rows_in(stored, request))
        return Start(request, request.layouts(stored.shard_rows, stored), stored, None, (), replaces=True)
    elif stored is not None and existing == "update":
        candidates.append(stored)
    elif stored is not None:
        raise StoreError(_occupied_message(stored, request))
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


def _open_existing(out: Path, existing: Existing, warn: Callable[[str], None]) -> FeatureStore | None:
    """The set at `out`; None if it is to be replaced and nothing of it can be used."""
    try:
        stored = FeatureStore.open(out)
    except StoreError as error:
        if existing != "update":
            raise
        warn(f"{error}. It is extracted again; what is there is replaced when that is finished")
        return None
    return stored if "images" in stored.kinds or existing != "update" else None


def _is_current(stored: FeatureStore, attributes: Mapping[str, Any]) -> bool:
    """Whether nothing has to be written: this copy lacks no array, and its attributes are current."""
    whole = len(stored.arrays) == len(stored.attributes["arrays"])
    same = all(stored.attributes.get(name) == attributes.get(name) for name in COMPARED)
    return whole and same and training_difference(stored, attributes) is None


def older_attributes(begun: Start, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Attributes of a set that is repaired or completed: an older one keeps its attributes, so that its receipt still fits."""
    base = begun.base
    if base is None or base.spec.key != begun.request.spec.key:
        return attributes
    if "encoder" in base.attributes:
        records_training = NAMES[0] in base.attributes or training_difference(base, attributes) is not None
    else:  # its zarr.json is lost; a set without digests of images is older than these attributes
        records_training = any(layout.name == DIGEST for layout in begun.layouts)
    return attributes if records_training else {name: value for name, value in attributes.items() if name not in NAMES}


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


def _completion(request: Request, stored: FeatureStore) -> Start:
    """What it takes to write the same set again, whole; without digests of images if it is an older one that lacks them."""
    layouts = request.layouts(stored.shard_rows, stored)
    layouts = [layout for layout in layouts if layout.name != DIGEST or DIGEST in stored.attributes["arrays"]]
    return Start(request, layouts, stored, None, (), replaces=True)


def _occupied_message(stored: FeatureStore, request: Request) -> str:
    """Why a set cannot be written where another one is."""
    spec = request.spec
    fields = stored.spec.differences(spec)
    add = ", or add to it with --extend" if set(fields) <= set(EXTENDABLE_FIELDS) else ""
    options = transform_options(stored.spec, spec)
    same = f", or the options it was made with{options}" if options else ""
    return (
        f"{stored.where} holds a feature set with key {stored.spec.key}, this one has {spec.key} "
        f"({stored.spec.explained(spec)} differ); give another --out, or remove it first{add}{same}, or let this one take its "
        "place with --update"
    )
