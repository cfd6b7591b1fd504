"""Stage one: every image once through a frozen encoder, into a feature set."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch

from extract.attention import STATISTICS
from extract.datasets import DataError, ImageSet
from extract.encoders import Encoder
from extract.layouts import layouts_of
from extract.units import OnError, Units
from store import BeyondClsError, FeatureSpec, FeatureStore, FeatureWriter, StoreError
from store.codecs import get_codec
from store.errors import unknown
from store.repair import salvage
from store.spec import EXTENDABLE_FIELDS
from store.writer import discard_staging

Existing = Literal["refuse", "extend", "repair"]


def extract(
    encoder: Encoder,
    images: ImageSet,
    out: Path,
    *,
    blocks: Sequence[int] = (-1,),
    statistics: Sequence[str] | None = None,
    maps: bool = True,
    dtype: str = "float16",
    batch_size: int = 128,
    shard_rows: int | None = None,
    workers: int = 4,
    device: str | torch.device = "cpu",
    on_error: OnError = "raise",
    existing: Existing = "refuse",
    progress: Callable[[int], None] | None = None,
) -> FeatureStore:
    """Write the feature set of `images` to `out` and open it. What an interrupted run has written is kept and used.

    Args:
        encoder: frozen.
        images: in fixed order; row i of the store is image i.
        out: folder of the feature set; if it already holds this very one, nothing is done.
        blocks: whose tokens to keep; negative ones count from the end.
        statistics: attention statistics, of every block; all that the encoder can have by default.
        maps: keep the last block's attention maps.
        dtype: codec of tokens, a name in `store.codecs.CODECS`.
        batch_size: images per forward pass.
        shard_rows: images per shard file, a multiple of 32; by default as suits the set (4 to 512 MB).
        workers: threads that decode.
        device: where the encoder runs.
        on_error: "raise" at the first image or tar that is damaged or unlabelled; "record" keeps its row, marked invalid.
        existing: what to do with another feature set at `out`: "refuse"; "extend" it by these blocks, statistics, maps and
            by images that follow its own, computing only what it lacks; or "repair" it, computing only what is damaged.
        progress: called with the number of images done since the last call.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: `out` is occupied by another feature set.
        BeyondClsError: unknown block, statistic or dtype; tokens beyond the range of float16.
    """
    problems = _checked_data(images, on_error)
    get_codec(dtype)
    if shard_rows is not None and (shard_rows % 32 or shard_rows < 32):
        raise BeyondClsError(f"shard_rows is {shard_rows}, expected a multiple of 32")
    kept, chosen = _blocks(blocks, encoder.n_blocks), _statistics(encoder, statistics)
    report = progress or (lambda n: None)
    encoder.model.to(device)
    base: FeatureStore | None = None
    skip: list[tuple[str, int]] = []
    if existing == "extend" and (out / "zarr.json").exists():
        base = FeatureStore.open(out)
        kept = tuple(sorted({*kept, *base.spec.blocks}))
        chosen = tuple(name for name in encoder.statistics if name in {*chosen, *base.spec.statistics})
        maps = maps or bool(base.spec.maps)
    probe = encoder(torch.zeros(1, *encoder.config["input_size"], device=device), kept, chosen, maps)
    spec = FeatureSpec(
        weights=encoder.weights,
        architecture=encoder.architecture,
        transform=encoder.described_transform,
        data=images.digest,
        n_images=len(images),
        blocks=kept,
        statistics=chosen,
        maps=tuple(sorted(probe.maps)),
        dtype=dtype,
    )
    if base is not None:
        _check_extension(base, spec, images)
    if existing != "repair" and (out / "zarr.json").exists():
        store = base if base is not None else FeatureStore.open(out)
        if store.spec.key == spec.key:
            discard_staging(out, spec.key)
            report(len(images))
            return store
        if base is None:
            differ = store.spec.differences(spec)
            extend = ", or add to it with --extend" if set(differ) <= set(EXTENDABLE_FIELDS) else ""
            raise StoreError(
                f"{out} holds a feature set with key {store.spec.key}, this one has {spec.key} "
                f"({', '.join(differ)} differ); give another --out, or remove it first{extend}"
            )
    id_width = _id_width(images, base)
    if existing == "repair":
        base, layouts, skip = salvage(out, spec, lambda rows: layouts_of(probe, images, dtype, rows, id_width))
    else:
        shard_rows = base.shard_rows if base is not None else shard_rows
        layouts = layouts_of(probe, images, dtype, shard_rows, id_width)
    norm, eps = encoder.norm()
    constants = {f"norm/{name}": value.numpy() for name, value in norm.items()}
    with (
        FeatureWriter(out, spec, layouts, constants, base, skip) as writer,
        ThreadPoolExecutor(workers) as decoders,
        ThreadPoolExecutor(1) as disk,
    ):
        todo = writer.missing_units()
        report(len(images) - sum(len(range(*layouts[0].rows(unit))) for unit in todo))
        units = Units(encoder, images, layouts, kept, chosen, maps, batch_size, dtype, decoders, device, on_error, report)
        writing: Future[None] | None = None
        for unit in todo:
            rows = range(writer.first_row(unit), layouts[0].rows(unit)[1])
            report(len(range(*layouts[0].rows(unit))) - len(rows))
            arrays, notes = units.compute(rows, writer.missing_arrays(unit))
            if writing is not None:
                writing.result()
            writing = disk.submit(writer.write_unit, unit, arrays, notes)  # while the next unit is computed
        if writing is not None:
            writing.result()
        names = list(images.classes) if images.classes is not None else None
        writer.finish({"encoder": encoder.name, "norm_eps": eps, "classes": names, "problems": problems})
    return FeatureStore.open(out)


def _check_extension(base: FeatureStore, spec: FeatureSpec, images: ImageSet) -> None:
    """Raises: StoreError: `base` is of another encoder, or not of the first of these images."""
    if differ := [name for name in base.spec.differences(spec) if name not in EXTENDABLE_FIELDS]:
        raise StoreError(
            f"{base.path} cannot be extended: {', '.join(differ)} differ; give another --out, or the options it was made with"
        )
    if len(base) > len(images) or base.spec.data != images.digest_of(len(base)):
        raise StoreError(
            f"{base.path} cannot be extended: its {len(base)} images are not the first of the {len(images)} "
            f"in {images.source}; new images must come after those that are there"
        )


def _id_width(images: ImageSet, base: FeatureStore | None) -> int:
    """Bytes of an id: of the longest, and no fewer than are stored already."""
    longest = max(len(sample.id.encode()) for sample in images.samples)
    return longest if base is None else max(longest, base.array("images/id").shape[1])


def _checked_data(images: ImageSet, on_error: OnError) -> list[str]:
    """What is wrong with the images, without paths; nothing if that must not be."""
    problems = images.all_problems()
    if problems and on_error == "raise":
        more = f"\n({len(problems)} problems in all)" if len(problems) > 10 else ""
        raise DataError("\n".join(problems[:10]) + more + "\nmend the data, or go on with --on-error record")
    if len(images) == 0:
        raise DataError(f"{images.source} has no readable images:\n" + "\n".join(problems[:10]))
    for folder in {sample.file.parent for sample in images.samples}:
        problems = [problem.replace(f"{folder}/", "") for problem in problems]
    return problems


def _statistics(encoder: Encoder, names: Sequence[str] | None) -> tuple[str, ...]:
    """Names of attention statistics, all that the encoder can have by default."""
    for name in names or ():
        if name not in STATISTICS:
            raise BeyondClsError(unknown("attention statistic", name, STATISTICS))
        if name not in encoder.statistics:
            can = ", ".join(encoder.statistics)
            raise BeyondClsError(f"{encoder.name} has no [cls] token, so no {name}; it can have: {can}")
    # In one order, whatever that of the names: equal sets have equal keys.
    return tuple(name for name in encoder.statistics if names is None or name in names)


def _blocks(blocks: Sequence[int], n_blocks: int) -> tuple[int, ...]:
    """Counted from 0, ascending, without repeats."""
    for block in blocks:
        if not -n_blocks <= block < n_blocks:
            raise BeyondClsError(
                f"there is no block {block}: the encoder has blocks 0 to {n_blocks - 1} (negative ones count from the end)"
            )
    if not blocks:
        raise BeyondClsError("no block was asked for; give at least one, e.g. --blocks -1 for the last")
    return tuple(sorted({block % n_blocks for block in blocks}))
