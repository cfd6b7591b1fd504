"""Stage one: every image once through a frozen encoder, into a feature set."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from extract.attention import STATISTICS
from extract.datasets import DataError, ImageSet
from extract.encoders import Encoded, Encoder
from store import ArrayLayout, BeyondClsError, FeatureSpec, FeatureStore, FeatureWriter, StoreError
from store.errors import unknown

OnError = Literal["raise", "record"]
DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class Decoded:
    """An image ready for the encoder, or what was wrong with it."""

    tensor: Tensor | None
    size: tuple[int, int]  # height and width of the original, pixels
    problem: str | None


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
    shard_rows: int = 1024,
    workers: int = 4,
    device: str | torch.device = "cpu",
    on_error: OnError = "raise",
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
        dtype: of tokens and maps, float16 or float32.
        batch_size: images per forward pass.
        shard_rows: images per shard file, a multiple of 32.
        workers: threads that decode.
        device: where the encoder runs.
        on_error: "raise" at the first image or tar that is damaged or unlabelled; "record" keeps its row, marked invalid.
        progress: called with the number of images done since the last call.

    Raises:
        DataError: damaged or unlabelled data, with `on_error="raise"`.
        StoreError: `out` is occupied by another feature set.
        BeyondClsError: unknown block, statistic or dtype; tokens beyond the range of float16.
    """
    problems = images.all_problems()
    if problems and on_error == "raise":
        more = f"\n({len(problems)} problems in all)" if len(problems) > 10 else ""
        raise DataError("\n".join(problems[:10]) + more + "\nmend the data, or go on with --on-error record")
    if len(images) == 0:
        raise DataError(f"{images.source} has no readable images:\n" + "\n".join(problems[:10]))
    if dtype not in DTYPES:
        raise BeyondClsError(unknown("dtype", dtype, DTYPES))
    if shard_rows % 32 or shard_rows < 32:
        raise BeyondClsError(f"shard_rows is {shard_rows}, expected a multiple of 32")
    kept = _blocks(blocks, encoder.n_blocks)
    chosen = tuple(encoder.statistics if statistics is None else statistics)
    for name in chosen:
        if name not in STATISTICS:
            raise BeyondClsError(unknown("attention statistic", name, STATISTICS))
        if name not in encoder.statistics:
            raise BeyondClsError(
                f"{encoder.name} has no [cls] token, so no {name}; it can have: {', '.join(encoder.statistics)}"
            )
    encoder.model.to(device)
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
    if (out / "zarr.json").exists():
        store = FeatureStore.open(out)
        if store.spec.key == spec.key:
            if progress:
                progress(len(images))
            return store
        raise StoreError(
            f"{out} holds a feature set with key {store.spec.key}, this one has {spec.key} "
            f"({', '.join(_differences(store.spec, spec))} differ); give another --out, or remove it first"
        )
    width = max(len(s.id.encode()) for s in images.samples)
    layouts = _layouts(probe, len(images), dtype, shard_rows, width)
    norm, eps = encoder.norm()
    writer = FeatureWriter(out, spec, layouts, {f"norm/{name}": value.numpy() for name, value in norm.items()})
    if progress:
        progress(len(images) - sum(_length(layouts[0], u) for u in writer.missing_units()))
    with ThreadPoolExecutor(workers) as decoders, ThreadPoolExecutor(1) as disk:
        written = None
        for unit in writer.missing_units():
            rows = range(*layouts[0].rows(unit))
            arrays, notes = _unit(
                encoder, images, rows, layouts, kept, chosen, maps, batch_size, decoders, device, on_error, progress
            )
            if written is not None:
                written.result()
            written = disk.submit(writer.write_unit, unit, arrays, notes)  # while the next unit is computed
        if written is not None:
            written.result()
    names = list(images.classes) if images.classes is not None else None
    writer.finish({"encoder": encoder.name, "norm_eps": eps, "classes": names, "problems": problems})
    return FeatureStore.open(out)


def _unit(
    encoder: Encoder,
    images: ImageSet,
    rows: range,
    layouts: Sequence[ArrayLayout],
    blocks: Sequence[int],
    statistics: Sequence[str],
    maps: bool,
    batch_size: int,
    decoders: ThreadPoolExecutor,
    device: str | torch.device,
    on_error: OnError,
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """All arrays of one unit of rows, and notes on its invalid rows. Invalid rows are zero."""
    arrays = {a.name: np.zeros((len(rows), *a.shape[1:]), a.dtype) for a in layouts}
    notes: list[dict[str, Any]] = []
    for first, batch in _decoded(encoder, images, rows, batch_size, decoders):
        good = []
        for offset, image in enumerate(batch):
            at, sample = first + offset, images.samples[rows[first + offset]]
            encoded_id = sample.id.encode()
            arrays["images/id"][at, : len(encoded_id)] = np.frombuffer(encoded_id, np.uint8)
            arrays["images/label"][at] = -1 if sample.label is None else sample.label
            arrays["images/size"][at] = image.size
            arrays["images/valid"][at] = image.problem is None
            if image.problem is None:
                good.append(offset)
            elif on_error == "raise":
                raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
            else:
                notes.append({"row": rows[at], "id": sample.id, "problem": image.problem})
        if good:
            stacked = torch.stack([batch[i].tensor for i in good]).to(device)  # type: ignore[misc]
            features = _named(encoder(stacked, blocks, statistics, maps))
            for name, values in features.items():
                arrays[name][[first + i for i in good]] = _cast(values, name, arrays[name].dtype, encoder)
        if progress:
            progress(len(batch))
    return arrays, notes


def _decoded(
    encoder: Encoder, images: ImageSet, rows: range, batch_size: int, decoders: ThreadPoolExecutor
) -> Iterator[tuple[int, list[Decoded]]]:
    """Batches of decoded and transformed images with the position of their first, one batch ahead."""

    def decode(row: int) -> Decoded:
        if images.samples[row].problem:
            return Decoded(None, (0, 0), f"{images.samples[row]}: {images.samples[row].problem}")
        try:
            image = images.image(row)
        except DataError as error:
            return Decoded(None, (0, 0), str(error))
        return Decoded(encoder.transform(image), (image.height, image.width), None)

    starts = range(0, len(rows), batch_size)
    ahead = [decoders.submit(decode, r) for r in rows[:batch_size]]
    for start in starts:
        current, ahead = ahead, [decoders.submit(decode, r) for r in rows[start + batch_size : start + 2 * batch_size]]
        yield start, [future.result() for future in current]


def _named(encoded: Encoded) -> dict[str, Tensor]:
    """Features by the name of their array in the store."""
    named: dict[str, Tensor] = {}
    by_block: dict[str, Mapping[int, Tensor]] = {
        "patch": encoded.patch,
        "cls": encoded.cls,
        "registers": encoded.registers,
    }
    for kind, tokens in by_block.items():
        named |= {f"{kind}/block{block}/view0": values for block, values in tokens.items()}
    named |= {f"statistics/{name}/view0": values for name, values in encoded.statistics.items()}
    named |= {f"attention/{name}/view0": values for name, values in encoded.maps.items()}
    return named


DIMENSIONS = {
    "patch": ("image", "patch", "channel"),
    "cls": ("image", "channel"),
    "registers": ("image", "register", "channel"),
    "statistics": ("image", "block", "head"),
    "attention": ("image", "head", "patch"),
}


def _layouts(encoded: Encoded, n_images: int, dtype: str, shard_rows: int, id_width: int) -> list[ArrayLayout]:
    """Layouts of all arrays, from the features of one image. Statistics stay float32."""
    layouts = [
        ArrayLayout("images/id", (n_images, id_width), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout("images/label", (n_images,), "int64", ("image",), shard_rows),
        ArrayLayout("images/size", (n_images, 2), "int32", ("image", "side"), shard_rows),
        ArrayLayout("images/valid", (n_images,), "uint8", ("image",), shard_rows),
    ]
    for name, values in _named(encoded).items():
        kind = name.split("/")[0]
        stored = "float32" if kind == "statistics" else dtype
        layouts.append(ArrayLayout(name, (n_images, *values.shape[1:]), stored, DIMENSIONS[kind], shard_rows))
    return layouts


def _cast(values: Tensor, name: str, dtype: np.dtype, encoder: Encoder) -> np.ndarray:
    """To the stored dtype, on the CPU. Never turns a finite value into an infinite one, never stores NaN."""
    if not values.isfinite().all():
        raise BeyondClsError(f"{encoder.name} gives NaN or Inf in {name}; its weights or its input are broken")
    cast = values.to(getattr(torch, dtype.name))
    if not cast.isfinite().all():
        raise BeyondClsError(
            f"{name} reaches {values.abs().max().item():.3g}, beyond the range of {dtype.name}; extract with --dtype float32"
        )
    return cast.cpu().numpy()


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


def _differences(one: FeatureSpec, other: FeatureSpec) -> list[str]:
    a, b = one.to_dict(), other.to_dict()
    return [name for name in a if a[name] != b[name]]


def _length(layout: ArrayLayout, unit: int) -> int:
    start, stop = layout.rows(unit)
    return math.ceil(stop - start)
