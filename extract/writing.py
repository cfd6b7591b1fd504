"""One task of an extraction: it computes what a feature set lacks, and writes it, alone or with others."""

import os
import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from extract.datasets import DataError, Sample
from extract.encoders import Encoder
from extract.forward import flops_of
from extract.layouts import annotations_of, is_annotation
from extract.loop import Arrays, OnError, Passes, Unit, Units, decoders, n_decoders
from extract.requests import Request
from extract.sample import SampleCheck, disagreement
from extract.stages import ELSE, WRITING, Spent, StageTimes
from store import ArrayLayout, BeyondClsError, FeatureStore, FeatureWriter
from store.writing.claims import own_first
from store.writing.publishing import Found

WRITTEN_AT_ONCE = 2  # units with a GPU, which computes one in less time than a thread takes for digests of its largest array
MANY_IMAGES = 2048  # processes that decode begin in half a second
# Has processes compute the missing units, given their number, of a set that a writer has begun.
Engine = Callable[[FeatureWriter, int], None]


@dataclass(frozen=True)
class Settings:
    """How an extraction runs. What it writes does not depend on it, but for images that cannot be read.

    Attributes:
        batch_size: images per forward pass; halved where memory does not suffice.
        workers: number of images that are decoded at once, as for `n_decoders`.
        on_error: "raise" at the first image or tar that is damaged or unlabelled; "record" keeps its row, marked invalid.
        recompute: extract again what a sample shows to differ, instead of stopping; with one task only.
        task_id, n_tasks: number of this process among those that write the set together, on one machine or several with a
            common file system. Each begins with its share of the units and goes on with units that no other works on, so
            fewer processes than planned may run.
        joins: where the set is staged by a process that has begun it, has compared what there was, and will finish it; this one
            computes units for it.
        engine: has other processes compute units in place of this one; with one task only.
        stops: whether to stop after the present unit, the first at least, and not to finish.
        progress: called with the number of images done since the last call.
        warn: called with what a user should know.
        devices: called with what computed each unit, where an engine had them computed.
        spent: called at the end with where the time of this process went.
        checked: called with each set that was compared by a sample, and the result, if the two agree.

    Raises:
        BeyondClsError: there is no task of this number.
    """

    batch_size: int = 128
    workers: int | None = None
    on_error: OnError = "raise"
    recompute: bool = False
    task_id: int = 0
    n_tasks: int = 1
    joins: Path | None = None
    engine: Engine | None = None
    stops: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda *_: None
    warn: Callable[[str], None] = lambda *_: None
    devices: Callable[[Mapping[int, Mapping[str, Any]]], None] = lambda *_: None
    spent: Callable[[Spent], None] = lambda *_: None
    checked: Callable[[FeatureStore, SampleCheck], None] = lambda *_: None

    def __post_init__(self) -> None:
        if not 0 <= self.task_id < self.n_tasks:
            raise BeyondClsError(f"task_id is {self.task_id}, expected 0 to {self.n_tasks - 1} (n_tasks is {self.n_tasks})")

    @property
    def is_first(self) -> bool:
        return self.task_id == 0


@dataclass(eq=False)
class Task:
    """What a set begins with, and one of the processes that write the rest; arguments of the `FeatureWriter`.

    Attributes:
        out: the folder of the set, or its address in an object store, which takes over nothing.
        base: the set whose features are copied.
        base_rows: its row of each image, -1 where it has none; None: the same.
        skip: names and shards of its arrays that are damaged.
        replaces: what was found at the same place, and is replaced in the end.
    """

    request: Request
    settings: Settings
    out: Path | str
    layouts: Sequence[ArrayLayout]
    base: FeatureStore | None = None
    base_rows: Int64[np.ndarray, "N"] | None = None
    skip: Sequence[tuple[str, int]] = ()
    replaces: Found | bool = False

    def write(self, attributes: Mapping[str, Any]) -> FeatureStore | None:
        """Compute what is missing, and open the set; None if it was stopped before that, or has joined another."""
        settings, request, layouts = self.settings, self.request, self.layouts
        described = [(a.name, unit) for a in layouts if is_annotation(a.name) for unit in range(a.n_shards)]
        skip = [*self.skip, *described]  # what describes images is written again

        def disagrees(unit: int, theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]) -> str | None:
            return disagreement(request, [request.images.samples.ids[row] for row in self._rows(unit)], theirs, ours)

        begins_with = (self.base, self.base_rows, skip, self.replaces, disagrees, computed_by(request.encoder))
        with FeatureWriter(self.out, request.spec, layouts, request.constants, *begins_with) as writer:
            self._writer, self._course = writer, StageTimes()
            self._unreported = set(range(layouts[0].n_shards))  # units that `progress` does not know of
            if settings.joins is not None and writer.staging.absolute() != settings.joins:
                raise BeyondClsError(
                    f"this process on {platform.node()} would write set {request.spec.key}, the command is for "
                    f"{settings.joins.name[-32:]}: its {request.encoder.name} is another; install the same packages and use "
                    "the same weights on all machines, and let a function that draws weights set its seed"
                )
            if settings.engine is None or settings.joins is not None:
                self._compute()
            else:
                self._have_computed(settings.engine)
            if settings.joins is not None or (settings.stops() and writer.missing_units()):
                return None
            writer.finish(attributes)
            if settings.engine is not None:
                settings.devices(writer.computed_by)
        return FeatureStore.open(self.out)

    def _compute(self) -> None:
        settings, todo = self.settings, self._writer.missing_units()
        self._n_written = n_written = WRITTEN_AT_ONCE if self.request.encoder.device.type == "cuda" else 1
        while True:
            self._report_written()
            if not todo:
                settings.spent(self._course.spent)
                return
            with (
                self._course.doing(ELSE),
                decoders(settings.workers, self.request.encoder.device) as threads,
                ThreadPoolExecutor(n_written, "beyondcls-writer") as self._disk,
            ):
                self._writing: deque[Future[None]] = deque()  # while the next is computed
                passes = Passes(
                    self.request,
                    settings.batch_size,
                    threads,
                    settings.warn,
                    self._course,
                    self._n_processes(len(todo) * self.layouts[0].shard_rows),
                )
                units = Units(passes, self.layouts, settings.on_error, settings.progress, n_written)
                claimed = self._claim_units(todo)
                for unit, arrays, notes in units.compute(self._plan_units(one_ahead(claimed) if n_written > 1 else claimed)):
                    self._begin_to_write(unit.number, arrays, notes)
                self._wait_for_disk()
            todo = [] if settings.stops() else self._writer.wait_for_others(settings.stops)

    def _n_processes(self, n_images: int) -> int:
        """How many processes decode images: with a GPU, as threads of one process cannot keep it busy.

        None for few images, and where other code than this program's gives them.
        """
        samples, device = self.request.images.samples, self.request.encoder.device
        if device.type != "cuda" or n_images < MANY_IMAGES or not hasattr(os, "fork"):
            return 0
        are_files = all(type(one) is Sample and isinstance(one.file, Path) for one in samples.others.values())
        return n_decoders(self.settings.workers, device) if are_files else 0

    def _have_computed(self, engine: Engine) -> None:
        """Have an engine's processes compute and write units, each of which begins as this one has."""
        self._report_written()
        for unit in self._writer.missing_units():
            names, rows = self._missing_arrays_and_rows(unit)
            if not (names and len(rows)) and self._writer.claim(unit):
                self._writer.write_unit(unit, self._annotations(unit))
                self._report_written()
        if self.request.encoder.device.type == "cuda":  # a worker needs the memory
            self.request.encoder.model.cpu()
            torch.cuda.empty_cache()
        if todo := self._writer.missing_units():
            engine(self._writer, len(todo))
            self._writer.wait_for_others(self.settings.stops)

    def _report_written(self) -> None:
        """Report images of units that were written, but not by this process."""
        written = self._unreported.difference(self._writer.missing_units())
        self.settings.progress(sum(len(self._rows(unit)) for unit in written))
        self._unreported -= written

    def _claim_units(self, todo: Sequence[int]) -> Iterator[int]:
        """Units of this process, those of this task's share first."""
        has_begun = False  # a process that is asked to stop at once has one unit to show for it
        for number in own_first(todo, self.settings.task_id, self.settings.n_tasks):
            if has_begun and self.settings.stops():
                return
            if self._writer.claim(number):
                has_begun = True
                yield number

    def _plan_units(self, claimed: Iterable[int]) -> Iterator[Unit]:
        """Units to compute. What another set has whole is written without computing."""
        for number in claimed:
            self._unreported.discard(number)  # its images are reported as they are computed
            names, rows = self._missing_arrays_and_rows(number)
            self.settings.progress(len(self._rows(number)) - len(rows))
            if len(rows) and names:
                yield Unit(number, rows.tolist(), names)
            else:  # another set has all arrays that need the images
                self._begin_to_write(number, {}, [])

    def _missing_arrays_and_rows(self, unit: int) -> tuple[list[str], Int64[np.ndarray, "N"]]:
        names = [name for name in self._writer.arrays_to_compute(unit) if not is_annotation(name)]
        return names, self._writer.taking.rows_to_compute(unit, names)

    def _begin_to_write(self, unit: int, arrays: Arrays, notes: Sequence[Mapping[str, Any]]) -> None:
        """Begin to write a unit, once there is room for one more among those that are being written."""
        self._wait_for_disk(self._n_written - 1)
        self._writing.append(self._disk.submit(lambda: self._writer.write_unit(unit, arrays | self._annotations(unit), notes)))

    def _wait_for_disk(self, n_left: int = 0) -> None:
        with self._course.doing(WRITING):
            while len(self._writing) > n_left:
                self._writing.popleft().result()

    def _annotations(self, unit: int) -> Arrays:
        return annotations_of(self.request.images, self.request.encoder, self._rows(unit), self.layouts)

    def _rows(self, unit: int) -> range:
        return range(*self.layouts[0].rows(unit))


def one_ahead(items: Iterator[int]) -> Iterator[int]:
    """Items, of which the next is found on a thread while one is used: claims wait for the disk, which is being written to."""
    with ThreadPoolExecutor(1, "beyondcls-next") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def computed_by(encoder: Encoder) -> dict[str, Any]:
    """What computes here, as the record of a unit has it: sets whose units were computed by several kinds say by which."""
    if encoder.device.type == "cuda":
        return {"device": torch.cuda.get_device_name(encoder.device)}
    kind = torch.backends.cpu.get_cpu_capability() if encoder.device.type == "cpu" else platform.machine()
    return {"device": f"{encoder.device.type} ({kind})", "threads": torch.get_num_threads()}


def attributes_of(request: Request, settings: Settings) -> dict[str, Any]:
    """What a set says about its encoder, its classes and problems of its images, in addition to its description.

    Raises:
        DataError: images are damaged or unlabelled and the settings don't want that recorded, or there is none.
    """
    encoder, images = request.encoder, request.images
    flops = flops_of(encoder.model, encoder.config["input_size"])
    truth_classes = {name: list(images.truths[name].classes) for name in request.truths}
    problems = images.all_problems()
    if problems and settings.on_error == "raise":
        total = f"\n({len(problems)} problems in all)" if len(problems) > 10 else ""
        raise DataError("\n".join(problems[:10]) + total + "\nmend the data, or go on with --on-error record")
    if len(images) == 0:
        raise DataError(f"{images.source} has no readable images:\n" + "\n".join(problems[:10]))
    for folder in {sample.file.parent for sample in images.samples} if problems else ():
        problems = [problem.replace(f"{folder}/", "") for problem in problems]
    return {
        "encoder": encoder.name,
        "norm_eps": encoder.norm()[1],
        "classes": None if images.classes is None else list(images.classes),
        "problems": problems,
        **({"truth_classes": truth_classes} if truth_classes else {}),
        **({"grid": list(encoder.grid)} if encoder.grid[0] != encoder.grid[1] else {}),
        **encoder.pretraining.to_dict(),
        **({} if flops is None else {"encoder_flops": flops}),
        **({"cls_caution": encoder.cls_caution} if encoder.cls_caution else {}),
    }
