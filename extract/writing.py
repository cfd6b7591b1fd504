"""Computing what a feature set lacks, and writing it."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from extract.annotations import annotations_of, is_annotation
from extract.attributes import kept_attributes
from extract.decoding import Unit
from extract.handing import Job
from extract.requests import Request
from extract.settings import Engine, Settings
from extract.stages import ELSE, WRITING, Course
from extract.units import Units
from store import ArrayLayout, FeatureStore, FeatureWriter
from store.places import is_remote
from store.writing.journal import read_records
from store.writing.publishing import Found
from store.writing.unit_writer import UnitWriter, own_first


@dataclass(frozen=True)
class Start:
    """What a new set begins with: its layouts, and what it takes over. Arguments of the `FeatureWriter`.

    Attributes:
        base: the set whose features are taken over.
        base_rows: its row of each image, -1 where it has none; None: the same.
        skip: names and shards of its arrays that are damaged.
        replaces: what was found at the same place, and is replaced in the end.
    """

    request: Request
    layouts: Sequence[ArrayLayout]
    base: FeatureStore | None = None
    base_rows: Int64[np.ndarray, "N"] | None = None
    skip: Sequence[tuple[str, int]] = ()
    replaces: Found | bool = False

    def write(self, out: Path | str, attributes: Mapping[str, Any], settings: Settings) -> FeatureStore | None:
        """Compute what is missing, and open the set; None if other tasks have not finished, or it was stopped.

        `out`: its folder, or its address in an object store, which takes over nothing and where no engine hands out units.
        """
        attributes = kept_attributes(self.base, self.request, self.layouts, attributes)
        with self._writer(out, settings.n_tasks > 1) as writer:
            if settings.engine is None:
                self._compute(writer, settings)
            else:
                assert isinstance(writer, FeatureWriter), out
                self._hand_out(writer, settings, settings.engine)
            if settings.stops() and writer.missing_units():
                return None
            is_finished = writer.finish(attributes)
        return FeatureStore.open(out) if is_finished else None

    @property
    def _not_taken(self) -> list[tuple[str, int]]:
        """Names and shards that are not taken over: damaged ones, and what describes images, which is written anew."""
        described = [(a.name, unit) for a in self.layouts if is_annotation(a.name) for unit in range(a.n_shards)]
        return [*self.skip, *described]

    def _writer(self, out: Path | str, shared: bool) -> UnitWriter:
        request = self.request
        if is_remote(os.fspath(out)):
            from store.writing.object_writer import ObjectWriter

            assert self.base is None, out
            return ObjectWriter(os.fspath(out), request.spec, self.layouts, request.constants, shared)
        taken = (self.base, self.base_rows, self._not_taken, self.replaces)
        return FeatureWriter(Path(out), request.spec, self.layouts, request.constants, *taken, shared=shared)

    def _compute(self, writer: UnitWriter, settings: Settings) -> None:
        """Compute and write units here."""
        unreported, todo, course = set(range(self.layouts[0].n_shards)), writer.missing_units(), Course()
        while True:
            self._report_written(writer, unreported, settings)
            if not todo:
                settings.spent(course.spent)
                return
            with (
                course.doing(ELSE),
                ThreadPoolExecutor(settings.workers) as decoders,
                _background_writer(writer, course) as write,
            ):
                units = Units(self.request, self.layouts, settings, decoders, course)
                for unit, arrays, notes in units.compute(self._claim_units(writer, todo, unreported, settings, write)):
                    write(unit.number, arrays | self._annotations(unit.number), notes)
            todo = [] if settings.stops() else writer.wait_for_others()

    def _hand_out(self, writer: FeatureWriter, settings: Settings, engine: Engine) -> None:
        """Have an engine's workers compute and write units."""
        unreported = set(range(self.layouts[0].n_shards))
        self._report_written(writer, unreported, settings)
        units = self._claim_units(writer, writer.missing_units(), unreported, settings, writer.write_unit)
        todo = {unit.number: writer.missing_arrays(unit.number) for unit in units}
        taken = (self.base, self.base_rows, self._not_taken)
        job = Job.of(self.request, writer.staging, self.layouts, *taken, settings)
        if self.request.encoder.device.type == "cuda":  # a worker needs the memory
            self.request.encoder.model.cpu()
            torch.cuda.empty_cache()
        if todo:
            engine(job, todo, writer.add)
        settings.devices({r["unit"]: r["device"] for r in read_records(writer.staging) if "device" in r})

    def _report_written(self, writer: UnitWriter, unreported: set[int], settings: Settings) -> None:
        """Report images of units that were written, but not by this process."""
        written = unreported.difference(writer.missing_units())
        settings.progress(sum(len(range(*self.layouts[0].rows(unit))) for unit in written))
        unreported -= written

    def _claim_units(
        self,
        writer: UnitWriter,
        todo: Sequence[int],
        unreported: set[int],
        settings: Settings,
        write: Callable[..., None],
    ) -> Iterator[Unit]:
        """Units to compute, those of this task's share first. What another set has whole is written without computing."""
        rows_of = self.layouts[0].rows
        has_begun = False  # a process that is asked to stop at once has one unit to show for it
        for number in own_first(todo, settings.task_id, settings.n_tasks):
            if has_begun and settings.stops():
                return
            if not writer.claim(number):
                continue
            has_begun = True
            unreported.discard(number)  # its images are reported as they are computed
            names = [name for name in writer.arrays_to_compute(number) if not is_annotation(name)]
            rows = writer.rows_to_compute(number, names)
            settings.progress(len(range(*rows_of(number))) - len(rows))
            if len(rows) and names:
                yield Unit(number, rows.tolist(), names)
            else:  # another set has all arrays that need the images
                write(number, self._annotations(number), ())

    def _annotations(self, unit: int) -> dict[str, np.ndarray]:
        return annotations_of(self.request.images, self.request.encoder, range(*self.layouts[0].rows(unit)), self.layouts)


@contextmanager
def _background_writer(writer: UnitWriter, course: Course) -> Iterator[Callable[..., None]]:
    """Yield a `write_unit` that returns at once; the next call, and the end, wait until the one before is done."""
    writing: Future[None] | None = None

    def wait() -> None:
        if writing is not None:
            with course.doing(WRITING):
                writing.result()

    def write(*arguments: object) -> None:
        nonlocal writing
        wait()
        writing = disk.submit(writer.write_unit, *arguments)  # type: ignore[arg-type]

    with ThreadPoolExecutor(1, "beyondcls-writer") as disk:
        yield write
        wait()
