"""What an extraction will cost, measured on a few images, and when keeping the features pays for itself."""

import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from extract.datasets import DataError
from extract.layouts import is_patch_label
from extract.loop import decoders
from extract.requests import Request
from extract.run import create
from extract.writing import Settings
from store import FeatureStore, Loader
from store.format.layout import ArrayName, kind_of

BATCHES = 4  # that are measured; the first is not counted, as it warms up
ENCODING_SECONDS = 5.0  # no new pass through the encoder alone starts after this time


@dataclass(frozen=True)
class Plan:
    """An extraction, before it is done. Rates are those of this machine, measured on a sample.

    Attributes:
        n_images, n_views: what is extracted.
        nbytes: of all files, by kind (patch, cls, …).
        n_shards: files that hold them.
        n_sampled: images that were measured.
        images_per_s: through the whole extraction: decoding, encoder, statistics, writing, all views.
        decoded_per_s: decoding and cropping alone, one view.
        encoded_per_s: through the encoder alone, without statistics, one view: what an epoch without a cache runs at.
        read_per_s: tokens of one view of an image, read in batches from where they would be.
    """

    n_images: int
    n_views: int
    nbytes: dict[str, int]
    n_shards: int
    n_sampled: int
    images_per_s: float
    decoded_per_s: float
    encoded_per_s: float
    read_per_s: float

    @property
    def seconds(self) -> float:
        """Of the extraction, in one process."""
        return self.n_images / self.images_per_s

    @property
    def seconds_without_cache(self) -> float:
        """Of one epoch that runs the encoder; images are decoded meanwhile, so the slower of the two counts."""
        return self.n_images / min(self.decoded_per_s, self.encoded_per_s)

    @property
    def seconds_with_cache(self) -> float:
        """Of one epoch that reads the tokens of one view."""
        return self.n_images / self.read_per_s

    @property
    def pays_after(self) -> float | None:
        """Epochs of probing after which extracting and reading took less time than running the encoder; None if never.

        E of seconds + E · seconds_with_cache = E · seconds_without_cache. Training the head costs the same both ways.
        """
        saved = self.seconds_without_cache - self.seconds_with_cache
        return self.seconds / saved if saved > 0 else None


@dataclass(frozen=True)
class Rates:
    """Crops a second on this machine, measured on a sample. A crop is one view of an image.

    Attributes:
        decoded_per_s: decoding and cropping alone.
        encoded_per_s: through the encoder alone, without statistics.
        computed_per_s: through the whole extraction but for writing: decoding, encoder and statistics together. Neither of the
            other two is less: they are part of it, so a slower measurement of them is noise.
    """

    n_sampled: int
    decoded_per_s: float
    encoded_per_s: float
    computed_per_s: float


def rates(
    request: Request,
    folder: Path,
    *,
    n_sampled: int,
    seconds: float | None = None,
    batch_size: int = 128,
    workers: int | None = None,
) -> Rates:
    """Extract some of the images, in one view, and measure: how much is written does not matter, so few will do.

    Fewer, two at least, where the encoder needs longer than so many `seconds`. Other arguments, and errors, are those of
    `plan`.
    """
    sample, settings = _sampled(request, n_sampled, batch_size, workers)
    decoded_per_s, encoded_per_s = _apart(sample, settings)
    if seconds is not None and seconds * encoded_per_s < len(sample.images):
        sample, settings = _sampled(request, max(2, int(seconds * encoded_per_s)), batch_size, workers)
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=existing_folder(folder)) as temporary:
        computing_s, _ = _extract(replace(sample, n_views=1), Path(temporary) / "sample", settings)
    together = 1 / computing_s
    return Rates(len(sample.images), max(decoded_per_s, together), max(encoded_per_s, together), together)


def stored_nbytes(request: Request, dtype: str | None = None) -> dict[str, int]:
    """Bytes of an image in one view, by the name of the array (`patch/block11/view0`), scales apart, without shard indices.

    Raises:
        StoreError: tokens of this width cannot be stored in this dtype.
    """
    layouts = [layout for layout in request.layouts(shard_rows=32, dtype=dtype) if not is_patch_label(layout.name)]
    return {layout.name: layout.row_nbytes for layout in layouts if ArrayName.parse(layout.name).view in (None, 0)}


def plan(
    request: Request, folder: Path, *, batch_size: int = 128, workers: int | None = None, n_sampled: int | None = None
) -> Plan:
    """Extract a sample of the images into a temporary folder, and measure. Weights do not matter; random ones will do.

    Args:
        folder: where the feature set would be; the sample is written beside it and removed.
        n_sampled: images to measure, in BATCHES batches; as many whole batches by default.

    Raises:
        DataError: an image of the sample is damaged, or no image is sound.
        StoreError: tokens of this width cannot be stored in this dtype.
    """
    sample, settings = _sampled(request, n_sampled or len(request.images), batch_size, workers)
    layouts, nbytes = request.layouts(), Counter[str]()
    for layout in layouts:
        nbytes[kind_of(layout.name)] += sum(layout.nbytes(shard) for shard in range(layout.n_shards))
    decoded_per_s, encoded_per_s = _apart(sample, settings)
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=existing_folder(folder)) as temporary:
        seconds = _extract(sample, Path(temporary) / "sample", settings)
        read_per_s = _read(Path(temporary) / "sample", settings.batch_size, request.encoder.device)
    return Plan(
        n_images=len(request.images),
        n_views=request.n_views,
        nbytes=dict(nbytes),
        n_shards=sum(layout.n_shards for layout in layouts),
        n_sampled=len(sample.images),
        images_per_s=1 / max(seconds),  # writing overlaps with computing, so the slower of the two counts
        decoded_per_s=decoded_per_s,
        encoded_per_s=encoded_per_s,
        read_per_s=read_per_s,
    )


def existing_folder(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())


def _sampled(request: Request, n: int, batch_size: int, workers: int | None) -> tuple[Request, Settings]:
    """The request of at most `n` sound images, evenly from the whole set, in BATCHES batches; and how they are extracted."""
    images = request.images
    settings = Settings(batch_size=min(batch_size, max(1, -(-min(n, len(images)) // BATCHES))), workers=workers)
    sound = np.flatnonzero(images.samples.is_sound).tolist()
    if not sound:
        raise DataError(f"{images.source} has no readable image to measure with:\n" + "\n".join(images.all_problems()[:10]))
    n = min(n, BATCHES * settings.batch_size, len(sound))
    chosen = [sound[i] for i in np.unique(np.linspace(0, len(sound) - 1, n).round().astype(int))]
    return replace(request, images=images.part(chosen)), settings


def _apart(request: Request, settings: Settings) -> tuple[float, float]:
    """Images per second that are decoded, and that pass through the encoder, each alone."""
    images, encoder = request.images, request.encoder

    def cut(row: int) -> torch.Tensor:
        return encoder.views.cut(images.image(row), images.samples[row].id, 0)[0]

    cut(0)  # opens files, loads codecs
    began = time.perf_counter()
    with decoders(settings.workers, encoder.device) as threads:
        pixels = list(threads.map(cut, range(len(images))))
    decoding_s = time.perf_counter() - began
    batch = encoder.normalised(torch.stack(pixels[: settings.batch_size]))
    passes: list[float] = []
    while len(passes) < BATCHES and sum(passes) < ENCODING_SECONDS:
        began = time.perf_counter()
        encoder(batch, [encoder.block]).patch[encoder.block].ravel()[0].item()  # waits for a GPU
        passes.append(time.perf_counter() - began)
    return len(images) / decoding_s, len(batch) / min(passes)


def _extract(request: Request, out: Path, settings: Settings) -> tuple[float, float]:
    """Seconds of an image, once it runs: of computing, and of writing what was computed."""
    n = len(request.images)
    reports: list[tuple[float, int]] = []  # time, images
    report = lambda n_done: reports.append((time.perf_counter(), n_done))  # noqa: E731
    create(replace(request, shard_rows=-(-n // 32) * 32), out, replace(settings, progress=report))  # one unit
    written = time.perf_counter()
    batches = [(time_s, n) for time_s, n in reports if n]
    (first, _), (last, _) = batches[0], batches[-1]
    n_timed = sum(n for _, n in batches[1:])
    computing = (last - first) / n_timed if n_timed else (last - reports[0][0]) / n
    return computing, (written - last) / n


def _read(path: Path, batch_size: int, device: str | torch.device) -> float:
    """Images per second that the loader reads past the page cache."""
    store = FeatureStore.open(path)
    kinds = ("patch", "cls") if store.spec.blocks else ("average", "cls")
    tokens = {kind: store.array(f"{kind}/block{store.spec.deepest}/view0") for kind in kinds if kind in store.kinds}
    labels = np.zeros(len(store), np.int64)
    loader = Loader(tokens, labels, batch_size=batch_size, device=device, placement="stream", direct=True)
    seconds = []
    for epoch in range(BATCHES):
        began = time.perf_counter()
        for batch in loader.epoch(epoch):
            batch["label"][0].item()  # waits for a GPU
        seconds.append(time.perf_counter() - began)
    return len(store) / min(seconds)
