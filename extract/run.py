"""Stage one: every image once through a frozen encoder, into a feature set."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from extract.annotations import ANNOTATIONS, annotations_of
from extract.datasets import ImageSet
from extract.encoders import Encoder
from extract.existing import Existing, Start, older_attributes, start, training_difference
from extract.requests import OnError, Request, checked_blocks, checked_data, checked_statistics
from extract.sample import SampleCheck, check_by_sample
from extract.units import Unit, Units
from store import BeyondClsError, FeatureStore, FeatureWriter, StoreError
from store.codecs import get_codec
from store.writing.repair import is_unnumbered

# What to do about a set that differs from what is computed now: a local one, one of several tasks, at a shared root, a source.
LOCAL_REMEDY = (
    "If the change is meant, extract it again: --recompute, or recompute: true under that encoder in the parameter file; "
    "else undo the change"
)
TASKS_REMEDY = (
    "One process can extract it again: leave out the number of tasks; or remove it (beyondcls store rm), and all of them "
    "extract it"
)
ROOT_REMEDY = (
    "If the change is meant, remove that set (beyondcls store rm, or at an object store its folder) and extract again; others "
    "may use it. Else undo the change"
)
SOURCE_REMEDY = "Leave out --from, and all is extracted; or undo the change"


def extract(
    encoder: Encoder,
    images: ImageSet,
    out: Path | Callable[[str], Path | FeatureStore],
    *,
    blocks: Sequence[int] | None = None,
    statistics: Sequence[str] | None = None,
    maps: bool = True,
    views: int = 1,
    dtype: str = "float16",
    batch_size: int = 128,
    shard_rows: int | None = None,
    workers: int = 4,
    device: str | torch.device = "cpu",
    on_error: OnError = "raise",
    existing: Existing = "refuse",
    source: FeatureStore | None = None,
    older: FeatureStore | None = None,
    recompute: bool = False,
    task_id: int = 0,
    n_tasks: int = 1,
    progress: Callable[[int], None] | None = None,
    warn: Callable[[str], None] | None = None,
    checked: Callable[[FeatureStore, SampleCheck], None] | None = None,
) -> FeatureStore | None:
    """Write the feature set of `images` to `out` and open it. What an interrupted run has written is kept and used.

    A set that exists is not computed again: a sample of it, and of all that is taken over from another set, is compared with
    what the program computes now (`extract.sample`). If they agree it stays.

    Args:
        encoder: frozen.
        images: in fixed order; row i of the store is image i.
        out: folder of the feature set; if it already holds this one, that is checked and stays. Or a function from the key of
            the set to that folder, or to the set itself where it exists already.
        blocks: whose tokens to keep; negative ones count from the end. By default the encoder's own choice.
        statistics: attention statistics, of every block; all that the encoder can have by default.
        maps: keep attention maps of these blocks, if the encoder has attention.
        views: of each image: the evaluation crop, and random crops beside it.
        dtype: codec of tokens, a name in `store.codecs.CODECS`.
        batch_size: images per forward pass; halved where memory does not suffice.
        shard_rows: images per shard file, a multiple of 32; chosen by default to suit the set (4 to 512 MB).
        workers: number of threads that decode.
        device: where the encoder runs.
        on_error: "raise" at the first image or tar that is damaged or unlabelled; "record" keeps its row, marked invalid.
        existing: what to do with another feature set at `out`: "refuse"; "update" it: this set takes its place when it is
            finished, and takes over from it what both have; "extend" it by these blocks, statistics, maps, views and by images
            that follow its own, computing only what it lacks; or "repair" it, computing only what is damaged.
        source: another set of this encoder, from which its images, blocks, statistics, maps and views are taken over.
        older: likewise a set that this one follows, wherever it is; nothing is taken over if its encoder is another.
        recompute: extract again what a sample shows to differ, instead of stopping; with one task only.
        task_id, n_tasks: number of this process among those that write the set together, on one machine or several with a
            common file system. Each begins with its share of the units and goes on with units that no other works on, so
            fewer processes than planned may run.
        progress: called with the number of images done since the last call.
        warn: called with what a user should know.
        checked: called with each set that was compared by a sample, and the result, if the two agree.

    Returns:
        The feature set; None if other tasks have not finished their units yet.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: `out` is occupied by another feature set, or another process writes it; an existing set, or `source`,
            holds other features than the program computes now; or `source` has another encoder.
        BeyondClsError: unknown block, statistic or dtype; tokens beyond the range of float16; too little memory for an image.
    """
    problems = checked_data(images, on_error)
    get_codec(dtype)
    if shard_rows is not None and (shard_rows % 32 or shard_rows < 32):
        raise BeyondClsError(f"shard_rows is {shard_rows}, expected a multiple of 32")
    if views < 1:
        raise BeyondClsError(f"views is {views}, expected 1 (the evaluation crop) or more")
    if not 0 <= task_id < n_tasks:
        raise BeyondClsError(f"task_id is {task_id}, expected 0 to {n_tasks - 1} (n_tasks is {n_tasks})")
    if n_tasks > 1 and existing == "repair":
        raise BeyondClsError("one process repairs a feature set; leave out the number of tasks")
    encoder.model.to(device)
    report, say = progress or _ignore, warn or _ignore
    assert isinstance(out, Path) or existing in ("refuse", "update"), (
        "a key is known only after what is to be extended or repaired"
    )
    kept_blocks = checked_blocks([encoder.block] if blocks is None else blocks, encoder.n_blocks)
    map_blocks = kept_blocks if maps and encoder.attends else ()
    request = Request(encoder, images, kept_blocks, checked_statistics(encoder, statistics), map_blocks, views, dtype)
    if existing == "extend" and isinstance(out, Path) and (out / "zarr.json").exists():
        request = request.added_to(FeatureStore.open(out))
    if existing == "repair" and isinstance(out, Path) and map_blocks and is_unnumbered(out):
        request = replace(request, map_blocks=(encoder.n_blocks - 1,), numbered=False)

    def agrees(store: FeatureStore, rows: Int64[np.ndarray, "N"] | None = None) -> bool:
        check = check_by_sample(request, store, rows, batch_size=batch_size, workers=workers)
        if check.agrees:
            (checked or _ignore)(store, check)
        elif recompute and isinstance(out, Path) and n_tasks == 1:
            say(f"{store.where}: {check.described}; it is extracted again")
        else:
            local = TASKS_REMEDY if recompute else LOCAL_REMEDY
            remedy = SOURCE_REMEDY if store is source else local if isinstance(out, Path) else ROOT_REMEDY
            raise StoreError(f"{store.where} is not what the program computes now: {check.described}. {remedy}")
        return check.agrees

    attributes, place = _attributes(encoder, images, problems), out
    if not isinstance(place, Path):
        places = [place(key) for key in request.keys]
        for finished in places:
            if isinstance(finished, FeatureStore):
                if task_id == 0 and agrees(finished) and (note := training_difference(finished, attributes)):
                    say(f"{note}. It stays as it is, for others may use it")
                report(len(images))
                return finished
        assert isinstance(places[0], Path)
        place = places[0]
    begun = start(request, place, existing, source, older, shard_rows, attributes, agrees, say, is_first=task_id == 0)
    if isinstance(begun, FeatureStore):
        report(len(images))
        return begun
    tasks, attributes = (task_id, n_tasks), dict(older_attributes(begun, attributes))
    is_finished = _write(place, begun, attributes, batch_size, workers, on_error, tasks, report, say)
    return FeatureStore.open(place) if is_finished else None


def _attributes(encoder: Encoder, images: ImageSet, problems: Sequence[str]) -> dict[str, Any]:
    """Attributes of the set beside its description."""
    names = list(images.classes) if images.classes is not None else None
    caution = {"cls_caution": encoder.cls_caution} if encoder.cls_caution else {}
    training = {**encoder.pretraining.to_dict(), **caution}
    return {"encoder": encoder.name, "norm_eps": encoder.norm()[1], "classes": names, "problems": list(problems), **training}


def _write(
    out: Path,
    begun: Start,
    attributes: Mapping[str, Any],
    batch_size: int,
    workers: int,
    on_error: OnError,
    tasks: tuple[int, int],
    report: Callable[[int], None],
    warn: Callable[[str], None],
) -> bool:
    """Compute what is missing; false if other tasks have not finished. `tasks`: number of this one, and of all."""
    (task_id, n_tasks), rows_of, request = tasks, begun.layouts[0].rows, begun.request
    taken = (begun.base, begun.base_rows, begun.skip, begun.replaces)
    with FeatureWriter(out, request.spec, begun.layouts, request.constants, *taken, shared=n_tasks > 1) as writer:
        with ThreadPoolExecutor(workers) as decoders, _background_writer(writer) as write:
            units = Units(request, begun.layouts, batch_size, decoders, on_error, report, warn)
            todo = writer.missing_units()
            report(len(request.images) - sum(len(range(*rows_of(unit))) for unit in todo))

            def claim_units() -> Iterator[Unit]:
                for number in sorted(todo, key=lambda unit: unit % n_tasks != task_id):  # its share first
                    if not writer.claim(number):
                        continue
                    names = [name for name in writer.arrays_to_compute(number) if name not in ANNOTATIONS]
                    rows = writer.rows_to_compute(number, names)
                    report(len(range(*rows_of(number))) - len(rows))
                    if len(rows) and names:
                        yield Unit(number, rows.tolist(), names)
                    else:  # another set has all arrays that need the images
                        write(number, annotations(number), ())

            def annotations(number: int) -> dict[str, np.ndarray]:
                return annotations_of(request.images, range(*rows_of(number)), begun.layouts)

            for unit, arrays, notes in units.compute(claim_units()):
                write(unit.number, arrays | annotations(unit.number), notes)
        return writer.finish(attributes)


@contextmanager
def _background_writer(writer: FeatureWriter) -> Iterator[Callable[..., None]]:
    """Yield a `write_unit` that returns at once; the next call, and the end, wait until the one before is done."""
    writing: Future[None] | None = None

    def write(*arguments: object) -> None:
        nonlocal writing
        if writing is not None:
            writing.result()
        writing = disk.submit(writer.write_unit, *arguments)  # type: ignore[arg-type]

    with ThreadPoolExecutor(1, "beyondcls-writer") as disk:
        yield write
        if writing is not None:
            writing.result()


def _ignore(*_: object) -> None:
    pass
