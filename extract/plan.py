"""What an extraction will cost, measured on a few of its images, and when keeping the features pays for itself."""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from extract.datasets import DataError, ImageSet
from extract.encoders import Encoder
from extract.requests import Request
from extract.run import create
from extract.settings import Settings
from store import FeatureStore, Loader
from store.format.array import ArrayReader
from store.format.layout import ArrayLayout
from store.format.names import kind_of

BATCHES = 4  # that are measured; the first is not counted, as it warms up


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


def plan(request: Request, folder: Path, *, batch_size: int = 128, workers: int = 4) -> Plan:
    """Extract a sample of the images into a temporary folder, and measure.

    Args:
        request: what would be extracted. Weights do not matter; random ones will do.
        folder: where the feature set would be; the sample is written beside it and removed.
        batch_size, workers: as for `Settings`.

    Raises:
        DataError: an image of the sample is damaged, or no image is sound.
        StoreError: tokens of this width cannot be stored in this dtype.
    """
    encoder, images = request.encoder, request.images
    settings = Settings(batch_size=min(batch_size, max(1, -(-len(images) // BATCHES))), workers=workers)
    sample = _sample(images, BATCHES * settings.batch_size)
    layouts = request.layouts()
    decoded_per_s, inputs = _decode(encoder, sample, settings)
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=existing_folder(folder)) as temporary:
        images_per_s = _extract(replace(request, images=sample), Path(temporary) / "sample", settings)
        read_per_s = _read(Path(temporary) / "sample", settings.batch_size, encoder.device)
    return Plan(
        n_images=len(images),
        n_views=request.n_views,
        nbytes=_nbytes(layouts),
        n_shards=sum(layout.n_shards for layout in layouts),
        n_sampled=len(sample),
        images_per_s=images_per_s,
        decoded_per_s=decoded_per_s,
        encoded_per_s=_encode(encoder, inputs),
        read_per_s=read_per_s,
    )


def existing_folder(folder: Path) -> Path:
    """The folder, or the nearest above it that is there already."""
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())


def _sample(images: ImageSet, n: int) -> ImageSet:
    """Sound images, evenly from the whole set."""
    sound = [sample for sample in images.samples if not sample.problem]
    if not sound:
        raise DataError(f"{images.source} has no readable image to measure with:\n" + "\n".join(images.all_problems()[:10]))
    chosen = [sound[i] for i in np.unique(np.linspace(0, len(sound) - 1, min(n, len(sound))).round().astype(int))]
    return ImageSet(images.source, chosen, images.classes, multilabel=images.multilabel)


def _decode(encoder: Encoder, sample: ImageSet, settings: Settings) -> tuple[float, torch.Tensor]:
    """Images per second, and a batch to measure the encoder with."""

    def cut(row: int) -> torch.Tensor:
        return encoder.views.cut(sample.image(row), sample.samples[row].id, 0)[0]

    cut(0)  # opens files, loads codecs
    began = time.perf_counter()
    with ThreadPoolExecutor(settings.workers) as decoders:
        inputs = list(decoders.map(cut, range(len(sample))))
    return len(sample) / (time.perf_counter() - began), torch.stack(inputs[: settings.batch_size])


def _encode(encoder: Encoder, inputs: torch.Tensor) -> float:
    """Images per second through the encoder alone: the best of a few passes."""
    inputs = inputs.to(encoder.device)
    seconds = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        encoder(inputs, [encoder.block]).patch[encoder.block].ravel()[0].item()  # waits for a GPU
        seconds.append(time.perf_counter() - began)
    return len(inputs) / min(seconds)


def _extract(request: Request, out: Path, settings: Settings) -> float:
    """Images per second, once it runs. Writing overlaps with computing, so the slower of the two counts."""
    n = len(request.images)
    reports: list[tuple[float, int]] = []  # time, images
    report = lambda n_done: reports.append((time.perf_counter(), n_done))  # noqa: E731
    create(replace(request, shard_rows=-(-n // 32) * 32), out, replace(settings, progress=report))  # one unit
    written = time.perf_counter()
    batches = [(time_s, n) for time_s, n in reports if n]
    (first, _), (last, _) = batches[0], batches[-1]
    n_timed = sum(n for _, n in batches[1:])
    began = reports[0][0]
    computing = (last - first) / n_timed if n_timed else (last - began) / n
    return 1 / max(computing, (written - last) / n)


def _read(path: Path, batch_size: int, device: str | torch.device) -> float:
    """Images per second that the loader reads past the page cache."""
    store = FeatureStore.open(path)
    block = store.spec.blocks[-1]
    tokens: dict[str, ArrayReader] = {
        kind: store.array(f"{kind}/block{block}/view0") for kind in ("patch", "cls") if kind in store.kinds
    }
    labels = np.zeros(len(store), np.int64)
    loader = Loader(tokens, labels, batch_size=batch_size, device=device, placement="stream", direct=True)
    seconds = []
    for epoch in range(BATCHES):
        began = time.perf_counter()
        for batch in loader.epoch(epoch):
            batch["label"][0].item()  # waits for a GPU
        seconds.append(time.perf_counter() - began)
    return len(store) / min(seconds)


def _nbytes(layouts: Sequence[ArrayLayout]) -> dict[str, int]:
    """Bytes of the shard files of each kind."""
    kinds: dict[str, int] = {}
    for layout in layouts:
        kind = kind_of(layout.name)
        kinds[kind] = kinds.get(kind, 0) + sum(layout.nbytes(shard) for shard in range(layout.n_shards))
    return kinds
