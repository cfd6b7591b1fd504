"""Stage one: every image once through a frozen encoder, into a feature set."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from extract.datasets import ImageSet
from extract.encoders import Encoder
from extract.layouts import layouts_of
from extract.requests import (
    OnError,
    check_extension,
    checked_blocks,
    checked_data,
    checked_statistics,
    id_width_of,
    map_names,
    older_names,
    transform_options,
    unnumbered,
)
from extract.units import Unit, Units
from store import BeyondClsError, FeatureSpec, FeatureStore, FeatureWriter, StoreError
from store.codecs import get_codec
from store.repair import is_unnumbered, salvage
from store.spec import EXTENDABLE_FIELDS
from store.writer import discard_staging

Existing = Literal["refuse", "extend", "repair"]


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
    task_id: int = 0,
    n_tasks: int = 1,
    progress: Callable[[int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> FeatureStore | None:
    """Write the feature set of `images` to `out` and open it. What an interrupted run has written is kept and used.

    Args:
        encoder: frozen.
        images: in fixed order; row i of the store is image i.
        out: folder of the feature set; if it already holds this very one, nothing is done. Or a function that gives it for the
            key of the set, or the set itself, if it is anywhere already.
        blocks: whose tokens to keep; negative ones count from the end. By default the one at which the encoder is read.
        statistics: attention statistics, of every block; all that the encoder can have by default.
        maps: keep attention maps of these blocks, where there are any.
        views: of each image: the evaluation crop, and random crops beside it.
        dtype: codec of tokens, a name in `store.codecs.CODECS`.
        batch_size: images per forward pass; halved where memory does not suffice.
        shard_rows: images per shard file, a multiple of 32; by default as suits the set (4 to 512 MB).
        workers: threads that decode.
        device: where the encoder runs.
        on_error: "raise" at the first image or tar that is damaged or unlabelled; "record" keeps its row, marked invalid.
        existing: what to do with another feature set at `out`: "refuse"; "extend" it by these blocks, statistics, maps,
            views and by images that follow its own, computing only what it lacks; or "repair" it, computing only what is
            damaged.
        task_id, n_tasks: which of several processes this is that write the set together, on one machine or several with a
            common file system. Each begins with its share of the units and goes on with what nobody else works on, so
            fewer may run than were planned.
        progress: called with the number of images done since the last call.
        warn: called with what a user should know.

    Returns: the feature set; None if other tasks have not finished their units yet.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: `out` is occupied by another feature set, or somebody else writes it.
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
    kept, chosen = (
        checked_blocks([encoder.block] if blocks is None else blocks, encoder.n_blocks),
        checked_statistics(encoder, statistics),
    )
    map_blocks = kept if maps and encoder.attends else ()
    last, numbered = encoder.n_blocks - 1, True  # older sets have the last block's maps alone, under names without a block
    encoder.model.to(device)
    report = progress or (lambda n: None)
    base: FeatureStore | None = None
    skip: list[tuple[str, int]] = []
    assert isinstance(out, Path) or existing == "refuse", "a key is known only after what is to be extended or mended"
    if existing == "extend" and isinstance(out, Path) and (out / "zarr.json").exists():
        base = FeatureStore.open(out)
        kept = tuple(sorted({*kept, *base.spec.blocks}))
        map_blocks = tuple(sorted({*(kept if map_blocks else ()), *base.spec.map_blocks("centre", last)}))
        chosen = tuple(name for name in encoder.statistics if name in {*chosen, *base.spec.statistics})
        views = max(views, base.spec.n_views)
    if existing == "repair" and isinstance(out, Path) and map_blocks and is_unnumbered(out):
        map_blocks, numbered = (last,), False
    probe = encoder(torch.zeros(1, *encoder.config["input_size"], device=encoder.device), kept, chosen, map_blocks)
    spec = FeatureSpec(
        weights=encoder.weights,
        architecture=encoder.architecture,
        transform=encoder.described_transform,
        data=images.digest,
        n_images=len(images),
        blocks=kept,
        statistics=chosen,
        maps=map_names(probe, numbered),
        n_views=views,
        dtype=dtype,
        compute_dtype=encoder.compute_dtype,
    )
    if base is not None:
        check_extension(base, spec, images)
    keys = [spec.key, *([older.key] if (older := unnumbered(spec, last)) else [])]  # the same under older names will do
    if not isinstance(out, Path):
        for place in (places := [out(key) for key in keys]):
            if isinstance(place, FeatureStore):
                report(len(images))
                return place
        assert isinstance(places[0], Path)
        out = places[0]
    if existing != "repair" and (out / "zarr.json").exists():
        store = base if base is not None else FeatureStore.open(out)
        if store.spec.key in keys:
            discard_staging(out, store.spec.key)
            report(len(images))
            return store
        if base is None:
            differ = store.spec.differences(spec)
            extend = ", or add to it with --extend" if set(differ) <= set(EXTENDABLE_FIELDS) else ""
            options = transform_options(store.spec, spec)
            same = f", or the options it was made with{options}" if options else ""
            raise StoreError(
                f"{out} holds a feature set with key {store.spec.key}, this one has {spec.key} "
                f"({store.spec.explained(spec)} differ); give another --out, or remove it first{extend}{same}"
            )
    id_width = id_width_of(images, base)
    if existing == "repair":
        base, layouts, skip = salvage(out, spec, lambda rows: layouts_of(probe, images, views, dtype, rows, id_width, numbered))
    else:
        if base is not None:
            shard_rows = base.shard_rows
            base.arrays |= {name: base.array(older) for name, older in older_names(base, last).items()}
        layouts = layouts_of(probe, images, views, dtype, shard_rows, id_width)
    norm, eps = encoder.norm()
    constants = {f"norm/{name}": value.numpy() for name, value in norm.items()}
    with FeatureWriter(out, spec, layouts, constants, base, skip, shared=n_tasks > 1) as writer:
        with ThreadPoolExecutor(workers) as decoders, _written_meanwhile(writer) as write:
            compute = Units(
                encoder,
                images,
                layouts,
                kept,
                chosen,
                map_blocks,
                numbered,
                batch_size,
                dtype,
                decoders,
                on_error,
                report,
                warn or _ignore,
            ).compute
            todo, rows_of = writer.missing_units(), layouts[0].rows
            report(len(images) - sum(len(range(*rows_of(unit))) for unit in todo))

            def claimed() -> Iterator[Unit]:
                for number in sorted(todo, key=lambda unit: unit % n_tasks != task_id):  # its share first
                    if writer.claim(number):
                        rows = range(writer.first_row(number), rows_of(number)[1])
                        report(len(range(*rows_of(number))) - len(rows))
                        yield Unit(number, rows, writer.missing_arrays(number))

            for unit, arrays, notes in compute(claimed()):
                write(unit.number, arrays, notes)
        names = list(images.classes) if images.classes is not None else None
        caution = {"cls_caution": encoder.cls_caution} if encoder.cls_caution else {}
        done = writer.finish({"encoder": encoder.name, "norm_eps": eps, "classes": names, "problems": problems, **caution})
    return FeatureStore.open(out) if done else None


@contextmanager
def _written_meanwhile(writer: FeatureWriter) -> Iterator[Callable[..., None]]:
    """Gives a `write_unit` that returns at once; the next call waits until the last one is done, as does the end."""
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


def _ignore(message: str) -> None:
    pass
