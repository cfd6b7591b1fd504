"""Computing what a feature set lacks, and writing it."""

import platform
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
from extract.decoding import Unit, decoders
from extract.encoders import Encoder
from extract.requests import Request
from extract.sample import disagreement
from extract.settings import Engine, Settings
from extract.stages import ELSE, WRITING, Course
from extract.units import Units
from store import ArrayLayout, BeyondClsError, FeatureStore, FeatureWriter
from store.writing.claims import own_first
from store.writing.publishing import Found


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
        """Compute what is missing, and open the set; None if it was stopped before that.

        `out`: its folder, or its address in an object store, which takes over nothing.
        """
        attributes = kept_attributes(self.base, self.request, self.layouts, attributes)
        with self.writer(out) as writer:
            if settings.joins is not None:
                self._join(writer, settings, settings.joins)
                return None
            if settings.engine is None:
                self.compute(writer, settings)
            else:
                self._have_computed(writer, settings, settings.engine)
            if settings.stops() and writer.missing_units():
                return None
            writer.finish(attributes)
            if settings.engine is not None:
                settings.devices(writer.computed_by)
        return FeatureStore.open(out)

    def writer(self, out: Path | str) -> FeatureWriter:
        """What writes the set."""
        request = self.request
        described = [(a.name, unit) for a in self.layouts if is_annotation(a.name) for unit in range(a.n_shards)]
        return FeatureWriter(
            out,
            request.spec,
            self.layouts,
            request.constants,
            self.base,
            self.base_rows,
            [*self.skip, *described],  # damaged ones, and what describes images, which is written anew
            self.replaces,
            self._disagreement,
            computed_by(request.encoder),
        )

    def _disagreement(self, unit: int, theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]) -> str | None:
        ids = [self.request.images.samples[row].id for row in range(*self.layouts[0].rows(unit))]
        return disagreement(self.request, ids, theirs, ours)

    def compute(self, writer: FeatureWriter, settings: Settings) -> None:
        """Compute and write units here, until all are written."""
        unreported, todo, course = set(range(self.layouts[0].n_shards)), writer.missing_units(), Course()
        while True:
            self._report_written(writer, unreported, settings)
            if not todo:
                settings.spent(course.spent)
                return
            with (
                course.doing(ELSE),
                decoders(settings.workers, self.request.encoder.device) as threads,
                _background_writer(writer, course) as write,
            ):
                units = Units(self.request, self.layouts, settings, threads, course)
                for unit, arrays, notes in units.compute(self._claim_units(writer, todo, unreported, settings, write)):
                    write(unit.number, arrays | self._annotations(unit.number), notes)
            todo = [] if settings.stops() else writer.wait_for_others(settings.stops)

    def _join(self, writer: FeatureWriter, settings: Settings, staging: Path) -> None:
        """Compute units of a set that another process has begun.

        Raises:
            BeyondClsError: it is another set.
        """
        if writer.staging.absolute() != staging:
            raise BeyondClsError(
                f"this process on {platform.node()} would write set {self.request.spec.key}, the command is for "
                f"{staging.name[-32:]}: its {self.request.encoder.name} is another; install the same packages and use the same "
                "weights on all machines, and let a function that draws weights set its seed"
            )
        self.compute(writer, settings)

    def _have_computed(self, writer: FeatureWriter, settings: Settings, engine: Engine) -> None:
        """Have an engine's processes compute and write units, each of which begins as this one has."""
        unreported = set(range(self.layouts[0].n_shards))
        self._report_written(writer, unreported, settings)
        for unit in writer.missing_units():
            names, rows = self._to_compute(writer, unit)
            if not (names and len(rows)) and writer.claim(unit):
                writer.write_unit(unit, self._annotations(unit))
                self._report_written(writer, unreported, settings)
        if self.request.encoder.device.type == "cuda":  # a worker needs the memory
            self.request.encoder.model.cpu()
            torch.cuda.empty_cache()
        if todo := writer.missing_units():
            engine(writer, len(todo))
            writer.wait_for_others(settings.stops)

    def _report_written(self, writer: FeatureWriter, unreported: set[int], settings: Settings) -> None:
        """Report images of units that were written, but not by this process."""
        written = unreported.difference(writer.missing_units())
        settings.progress(sum(len(range(*self.layouts[0].rows(unit))) for unit in written))
        unreported -= written

    def _claim_units(
        self,
        writer: FeatureWriter,
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
            names, rows = self._to_compute(writer, number)
            settings.progress(len(range(*rows_of(number))) - len(rows))
            if len(rows) and names:
                yield Unit(number, rows.tolist(), names)
            else:  # another set has all arrays that need the images
                write(number, self._annotations(number), ())

    def _to_compute(self, writer: FeatureWriter, unit: int) -> tuple[list[str], Int64[np.ndarray, "N"]]:
        """Arrays of a unit that need the images, and their rows."""
        names = [name for name in writer.arrays_to_compute(unit) if not is_annotation(name)]
        return names, writer.rows_to_compute(unit, names)

    def _annotations(self, unit: int) -> dict[str, np.ndarray]:
        return annotations_of(self.request.images, self.request.encoder, range(*self.layouts[0].rows(unit)), self.layouts)


@contextmanager
def _background_writer(writer: FeatureWriter, course: Course) -> Iterator[Callable[..., None]]:
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


def computed_by(encoder: Encoder) -> dict[str, Any]:
    """What computes here, as the record of a unit has it: sets whose units were computed by several kinds say by which."""
    if encoder.device.type == "cuda":
        return {"device": torch.cuda.get_device_name(encoder.device)}
    kind = torch.backends.cpu.get_cpu_capability() if encoder.device.type == "cpu" else platform.machine()
    return {"device": f"{encoder.device.type} ({kind})", "threads": torch.get_num_threads()}
