"""Units that another process hands out: what a worker has to know about them, and the worker.

Whoever hands them out holds the set's lock and keeps its journal; workers write shards, and return only records of them.
"""

import os
import platform
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int64

from extract.annotations import annotations_of, is_annotation
from extract.datasets import ImageSet
from extract.decoding import Unit
from extract.encoders import Encoder
from extract.requests import Request
from extract.reuse import add_current_names
from extract.settings import Settings
from extract.units import Units
from store import ArrayLayout, BeyondClsError, FeatureStore
from store.writing.handed_writer import HandedWriter

Record = Mapping[str, Any]  # of a unit, for the journal; `device` names what computed it


@dataclass(frozen=True)
class Handed:
    """A unit that is handed to a worker, and the arrays that it misses."""

    number: int
    missing: Sequence[str]


@dataclass(frozen=True)
class Job:
    """What a worker has to know, beside the encoder. It can be pickled.

    Attributes:
        images: of the request.
        features: other attributes of the request, by name.
        key: of the set.
        staging: where the set is staged, an absolute path.
        layouts: of all its arrays.
        base: address and key of the set from which features are taken over.
        base_rows, skip: as for `FeatureWriter`.
        settings: options of `Settings`.
        folder: in which the command was given; relative paths count from there.
    """

    images: ImageSet
    features: Mapping[str, Any]
    key: str
    staging: Path
    layouts: Sequence[ArrayLayout]
    base: tuple[str, str] | None
    base_rows: Int64[np.ndarray, "N"] | None
    skip: Sequence[tuple[str, int]]
    settings: Mapping[str, Any]
    folder: str

    @classmethod
    def of(
        cls,
        request: Request,
        staging: Path,
        layouts: Sequence[ArrayLayout],
        base: FeatureStore | None,
        base_rows: Int64[np.ndarray, "N"] | None,
        skip: Sequence[tuple[str, int]],
        settings: Settings,
    ) -> "Job":
        """The job of writing a set as these arguments of a `FeatureWriter` say."""
        features = {f.name: getattr(request, f.name) for f in fields(Request) if f.name not in ("encoder", "images")}
        running = {name: getattr(settings, name) for name in ("batch_size", "workers", "on_error")}
        address = None if base is None else (base.where, base.spec.key)
        place = (features, request.spec.key, staging.absolute(), layouts)
        return cls(request.images, *place, address, base_rows, skip, running, os.getcwd())

    def rows(self, unit: int) -> tuple[int, int]:
        """The first row of a unit, and the one behind its last."""
        return self.layouts[0].rows(unit)

    def n_images(self, unit: int) -> int:
        return len(range(*self.rows(unit)))


class Handout(Protocol):
    """Where a worker takes units from, and whom it reports to."""

    def take(self, waits: bool) -> Handed | None:
        """The next unit. None: there is none at present, or with `waits` there will be none."""

    def computed(self, unit: int) -> None:
        """All features of a unit are computed; it is written next."""

    def written(self, record: Record) -> None:
        """A unit is written."""

    def progress(self, n_images: int) -> None:
        """So many more images are computed, of the first unit that is not."""

    def warn(self, message: str) -> None:
        """What a user should know."""


class UnitError(Exception):
    """A unit could not be computed or written; the cause says why."""

    def __init__(self, unit: int):
        super().__init__(unit)
        self.unit = unit


class Worker:
    """Computes units that it is handed, and writes them.

    Raises:
        BeyondClsError: with this encoder another set would come out.
    """

    def __init__(self, job: Job, encoder: Encoder):
        self._job = job
        self._request = Request(encoder, job.images, **job.features)
        if self._request.spec.key != job.key:
            raise BeyondClsError(
                f"the worker on {platform.node()} would write set {self._request.spec.key}, the command is for {job.key}: its "
                f"{encoder.name} is another; install the same packages and use the same weights on all machines, "
                "and let a function that draws weights set its seed"
            )
        base = None if job.base is None else FeatureStore.open(*job.base)
        if base is not None:
            add_current_names(base, encoder.n_blocks)
        self._writer = HandedWriter(job.staging, job.layouts, base, job.base_rows, job.skip)
        self._device = device_name(encoder.device)

    def run(self, handout: Handout) -> None:
        """Work until there will be no more units.

        Raises:
            UnitError: one of them failed; others that were taken are not written either.
        """
        settings = Settings(**self._job.settings, progress=handout.progress, warn=handout.warn)
        with ThreadPoolExecutor(settings.workers) as decoders, ThreadPoolExecutor(1, "beyondcls-writer") as disk:
            units = Units(self._request, self._job.layouts, settings, decoders)
            while (first := handout.take(True)) is not None:
                self._run_from(first, units, handout, disk)
        self._writer.close()

    def _run_from(self, first: Handed, units: Units, handout: Handout, disk: ThreadPoolExecutor) -> None:
        """Work until there are no units at present."""
        pending: deque[int] = deque()
        writing: Future[None] | None = None
        try:
            for unit, arrays, notes in units.compute(self._units(first, handout, pending)):
                handout.computed(pending.popleft())
                if writing is not None:
                    writing.result()
                writing = disk.submit(self._write, unit, arrays, notes, handout)
        except UnitError:
            raise
        except Exception as error:
            raise UnitError(pending[0]) from error  # the next one is not computed before it
        if writing is not None:
            writing.result()

    def _units(self, first: Handed, handout: Handout, pending: deque[int]) -> Iterator[Unit]:
        handed: Handed | None = first
        while handed is not None:
            self._writer.expect(handed.number, handed.missing)
            names = [name for name in self._writer.arrays_to_compute(handed.number) if not is_annotation(name)]
            pending.append(handed.number)
            yield Unit(handed.number, self._writer.rows_to_compute(handed.number, names).tolist(), names)
            handed = handout.take(False)

    def _write(
        self, unit: Unit, arrays: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]], handout: Handout
    ) -> None:
        annotations = annotations_of(
            self._job.images, self._request.encoder, range(*self._job.rows(unit.number)), self._job.layouts
        )
        try:
            record = self._writer.write_unit(unit.number, {**arrays, **annotations}, notes)
        except Exception as error:
            raise UnitError(unit.number) from error
        handout.written({**record, "device": self._device})


def device_name(device: torch.device) -> str:
    """The model of a GPU, or the kind of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
