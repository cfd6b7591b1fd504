"""What an extraction will cost: bytes by a formula, and seconds by what a sample of the images takes on this machine."""

import os
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch

from extract.datasets import DataError
from extract.layouts import is_patch_label
from extract.loop import decoders
from extract.requests import Request
from extract.run import create
from extract.writing import Settings
from store import FeatureStore, Loader
from store.format.layout import ArrayName, kind_of
from store.places.disk import existing_folder
from store.shown import Bars, no_bars

SECONDS = 20.0  # of measuring an encoder
SHARE_APART = 0.1  # of these seconds for decoding alone, and as many for the encoder alone
BATCHES = 4  # of a sample at least; the first is not counted, as it warms up
AT_ONCE = 32  # images that are decoded between two looks at the clock
LARGEST_NBYTES = 1e9  # of a sample, which is in memory before it is written


@dataclass(frozen=True)
class Rates:
    """Of an extraction on this machine, measured on a sample. A crop is one view of an image.

    Attributes:
        n_sampled: images that went through the whole extraction.
        images_per_s: through the whole extraction: decoding, encoder, statistics and writing of all views.
        decoded_per_s: crops that are decoded and cut alone; never less than go through the whole extraction.
        encoded_per_s: crops through the encoder alone, without statistics; never less, either.
        read_per_s: bytes of tokens that are read back in batches, past the page cache.
        device_nbytes: the most that was taken of a GPU's memory; 0 on a CPU.
    """

    n_sampled: int
    images_per_s: float
    decoded_per_s: float
    encoded_per_s: float
    read_per_s: float
    device_nbytes: int


def total_nbytes(request: Request) -> tuple[dict[str, int], int]:
    """Bytes of all files of the feature set by kind (patch, cls, …), and how many files hold them.

    Raises:
        StoreError: tokens of this width cannot be stored in this dtype.
    """
    nbytes, layouts = Counter[str](), request.layouts()
    for layout in layouts:
        nbytes[kind_of(layout.name)] += sum(layout.nbytes(shard) for shard in range(layout.n_shards))
    return dict(nbytes), sum(layout.n_shards for layout in layouts)


def stored_nbytes(request: Request) -> dict[str, int]:
    """Bytes of an image in one view, by the name of the array (`patch/block11/view0`), scales apart, without shard indices.

    Raises:
        StoreError: tokens of this width cannot be stored in this dtype.
    """
    layouts = [layout for layout in request.layouts(shard_rows=32) if not is_patch_label(layout.name)]
    return {layout.name: layout.row_nbytes for layout in layouts if ArrayName.parse(layout.name).view in (None, 0)}


def measure(
    request: Request,
    folder: Path,
    *,
    seconds: float = SECONDS,
    batch_size: int = 128,
    workers: int | None = None,
    bars: Bars = no_bars,
) -> Rates:
    """Extract as many of the images as `seconds` allow, two at least, and measure. Random weights will do.

    Args:
        folder: where the feature set would be; the sample is written next to it and removed.
        bars: shows the progress of the extraction, as `beyondcls.progress_bar` does.

    Raises:
        DataError: an image of the sample is damaged, or no image is sound.
        StoreError: tokens of this width cannot be stored in this dtype.
    """
    images, device = request.images, request.encoder.device
    sound = np.flatnonzero(images.samples.is_sound)
    if not len(sound):
        raise DataError(f"{images.source} has no readable image to measure with:\n" + "\n".join(images.all_problems()[:10]))
    image_nbytes = sum(total_nbytes(request)[0].values()) / len(images)
    largest = int(min(LARGEST_NBYTES, shutil.disk_usage(existing_folder(folder)).free / 10) / image_nbytes)
    rows = np.random.default_rng(0).permutation(sound)[: max(2, largest)].tolist()
    decoded_per_s, pixels = _decode_rate(request, rows, SHARE_APART * seconds, batch_size, workers)
    encoded_per_s = _encode_rate(request, pixels, SHARE_APART * seconds)
    left = (1 - 2 * SHARE_APART) * seconds * min(decoded_per_s, encoded_per_s) / request.n_views
    rows = sorted(rows[: max(2, int(left))])
    settings = Settings(batch_size=min(batch_size, -(-len(rows) // BATCHES)), workers=workers)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with _scratch_folder(existing_folder(folder)) as scratch, bars(request.encoder.name, len(rows), "images") as progress:
        sample = replace(request, images=images.part(rows))
        image_s = _seconds_per_image(sample, scratch / "sample", replace(settings, progress=progress))
        device_nbytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        read_per_s = _read_rate(scratch / "sample", settings.batch_size, device)
    crops_per_s = request.n_views / image_s
    # Extraction includes both, so a slower measurement of either alone is noise.
    alone = max(decoded_per_s, crops_per_s), max(encoded_per_s, crops_per_s)
    return Rates(len(rows), 1 / image_s, *alone, read_per_s, device_nbytes)


@contextmanager
def _scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder that is removed in the end, as are those left here by killed processes of this machine."""
    prefix = f".plan-{socket.gethostname()}-"
    for left in folder.glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=folder) as scratch:
        yield Path(scratch)


def _decode_rate(
    request: Request, rows: list[int], seconds: float, n_kept: int, workers: int | None
) -> tuple[float, torch.Tensor]:
    """Crops a second that are decoded alone, and the first of them."""
    images, encoder, kept = request.images, request.encoder, list[torch.Tensor]()

    def cut(row: int) -> torch.Tensor:
        return encoder.views.cut(images.image(row), images.samples[row].id, 0)[0]

    cut(rows[0])  # opens files, loads codecs
    began, n = time.perf_counter(), 0
    with decoders(workers, encoder.device) as threads:
        while n < len(rows) and (n == 0 or time.perf_counter() - began < seconds):
            pixels = list(threads.map(cut, rows[n : n + AT_ONCE]))
            kept, n = [*kept, *pixels[: n_kept - len(kept)]], n + len(pixels)
    return n / (time.perf_counter() - began), torch.stack(kept)


def _encode_rate(request: Request, pixels: torch.Tensor, seconds: float) -> float:
    """Crops a second through the encoder alone, in batches that leave time for several."""
    encoder = request.encoder

    def timed(n: int) -> float:
        batch = encoder.normalised(pixels[:n])
        began = time.perf_counter()
        encoder(batch, [encoder.block]).patch[encoder.block].ravel()[0].item()  # waits for a GPU
        return time.perf_counter() - began

    timed(1)  # warms up
    n = max(1, min(len(pixels), int(seconds / timed(1) / BATCHES)))
    passes: list[float] = []
    while len(passes) < 2 or (len(passes) < BATCHES and sum(passes) < seconds):  # the first may compile
        passes.append(timed(n))
    return n / min(passes)


def _seconds_per_image(request: Request, out: Path, settings: Settings) -> float:
    """Seconds of an image, once it runs. Writing overlaps with computing, so the slower of the two counts."""
    n, reports = len(request.images), list[tuple[float, int]]()  # time, images

    def report(n_done: int) -> None:
        reports.append((time.perf_counter(), n_done))
        settings.progress(n_done)

    create(replace(request, shard_rows=-(-n // 32) * 32), out, replace(settings, progress=report))  # one unit
    written = time.perf_counter()
    batches = [(time_s, n) for time_s, n in reports if n]
    (first, _), (last, _) = batches[0], batches[-1]
    n_timed = sum(n for _, n in batches[1:])
    return max((last - first) / n_timed if n_timed else (last - reports[0][0]) / n, (written - last) / n)


def _read_rate(path: Path, batch_size: int, device: torch.device) -> float:
    """Bytes of tokens per second that the loader reads past the page cache."""
    store = FeatureStore.open(path)
    kinds = ("patch", "cls") if store.spec.blocks else ("average", "cls")
    tokens = {kind: store.array(f"{kind}/block{store.spec.deepest}/view0") for kind in kinds if kind in store.kinds}
    labels = np.zeros(len(store), np.int64)
    loader = Loader(tokens, labels, batch_size=batch_size, device=device, placement="stream", direct=True)
    seconds = []
    for epoch in range(2):
        began = time.perf_counter()
        for batch in loader.epoch(epoch):
            batch["label"][0].item()  # waits for a GPU
        seconds.append(time.perf_counter() - began)
    return sum(array.nbytes for array in tokens.values()) / min(seconds)
