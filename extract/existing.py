"""Feature sets that are there already, and whether they are what the program computes now."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from extract.compatible import transform_options
from extract.requests import Request
from extract.sample import check_by_sample
from extract.settings import Settings
from store import FeatureStore, StoreError
from store.format.spec import EXTENDABLE_FIELDS
from store.format.unfinished import base_at
from store.places import LocalFolder

# What to do about a set that differs from what is computed now: a local one, one of several tasks, at a shared root, a source.
LOCAL_REMEDY = (
    "If the change is meant, extract it again: --recompute, or recompute: true under that encoder in the parameter file; "
    "else undo the change"
)
TASKS_REMEDY = (
    "One process can extract it again: leave out the number of tasks; or remove it (beyondcls store rm), and all of them "
    "extract it"
)
SHARED_REMEDY = (
    "If the change is meant, remove that set (beyondcls store rm, or at an object store its folder) and extract again; others "
    "may use it. Else undo the change"
)
SOURCE_REMEDY = "Leave out --from, and all is extracted; or undo the change"


@dataclass(frozen=True)
class Comparison:
    """Compares feature sets with what the program computes now.

    Attributes:
        source: the set that the user wants features taken over from.
        shared: others may use the sets, so none is replaced.
    """

    request: Request
    settings: Settings
    source: FeatureStore | None = None
    shared: bool = False

    def finds_equal(self, store: FeatureStore) -> bool:
        """Whether a sample of the very set agrees, which is of use if it does and in nobody's way if not."""
        if self.settings.joins is not None:
            return self._is_base(store)
        check = check_by_sample(self.request, store, batch_size=self.settings.batch_size, workers=self.settings.workers)
        if check.agrees:
            self.settings.checked(store, check)
        return check.agrees

    def agrees(self, store: FeatureStore, rows: Int64[np.ndarray, "N"] | None = None) -> bool:
        """Whether a sample of a set agrees; if not, it is to be extracted again.

        Args:
            rows: as for `check_by_sample`.

        Raises:
            StoreError: it does not, and must not be extracted again without a word of the user.
        """
        settings = self.settings
        if settings.joins is not None:
            return self._is_base(store)
        check = check_by_sample(self.request, store, rows, batch_size=settings.batch_size, workers=settings.workers)
        if check.agrees:
            settings.checked(store, check)
        elif settings.recompute and not self.shared and settings.n_tasks == 1:
            settings.warn(f"{store.where}: {check.described}; it is extracted again")
        else:
            raise StoreError(
                f"{store.where} is not what the program computes now: {check.described}. {self._remedy(store is self.source)}"
            )
        return check.agrees

    def _is_base(self, store: FeatureStore) -> bool:
        """Whether the process that has begun the set takes rows over from this one."""
        assert self.settings.joins is not None
        base = base_at(LocalFolder(self.settings.joins))
        return base is not None and Path(base).absolute() == Path(store.where).absolute()

    def _remedy(self, is_source: bool) -> str:
        if is_source:
            return SOURCE_REMEDY
        if self.shared:
            return SHARED_REMEDY
        return TASKS_REMEDY if self.settings.recompute else LOCAL_REMEDY


def open_existing(out: Path) -> FeatureStore | None:
    """The set at `out`, if there is one.

    Raises:
        StoreError: it cannot be opened.
    """
    return FeatureStore.open(out) if (out / "zarr.json").exists() else None


def open_replaceable(out: Path, warn: Callable[[str], None]) -> FeatureStore | None:
    """Likewise of a set that is to be replaced; None if nothing of it can be used."""
    try:
        stored = open_existing(out)
    except StoreError as error:
        warn(f"{error}. It is extracted again; what is there is replaced when that is finished")
        return None
    return stored if stored is not None and "images" in stored.kinds else None


def occupied_message(stored: FeatureStore, request: Request) -> str:
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
