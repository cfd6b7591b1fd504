"""The encoder in front of the heads: tokens of training images, computed anew in every epoch on fresh random crops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extract.datasets import DataError, ImageSet
from extract.encoders import Encoder
from extract.forward import check_branches, checked_rate
from extract.layouts import arrays_by_name
from extract.loop import Passes, Unit
from extract.requests import Request
from probe.passes import Share
from probe.sources import Source
from store import FeatureStore, StoreError
from store.format.layout import ArrayName
from store.format.spec import EXTENDABLE_FIELDS
from store.loading.order import Order


@dataclass(frozen=True)
class EncoderLoop:
    """Training images and their encoder, for `probe(…, loop=…)`: heads train on what it makes of a crop of each, in each epoch.

    In the nth epoch that is the nth random crop, as the paper has it: the crop that is view n of a feature set with so many
    views, on any machine. One forward pass of a batch serves all heads, seeds and settings that train side by side. Tokens are
    float32, without the rounding of a store.

    Attributes:
        training: the feature set of these images and this encoder whose ids and labels count; its tokens are not read.
        fresh: False: every epoch shows the evaluation crop, and heads train as from stored features of float32.
        batch_size: images of a forward pass; halved where memory does not suffice.
        workers: threads that decode images and cut crops, while the batch before is computed.
        warn: called with what a user should know.
        drop_path: stochastic depth of fresh crops, as `extract` has it for stored ones; each epoch has its own draws.

    Raises:
        BeyondClsError: a rate that cannot be, or for an encoder whose branches cannot be dropped, or without fresh crops.
        StoreError: the feature set is of other images, or of another encoder (weights, transform, …).
    """

    encoder: Encoder
    images: ImageSet
    training: FeatureStore
    fresh: bool = True
    batch_size: int = 128
    workers: int = 4
    warn: Callable[[str], None] = lambda _: None
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        if checked_rate(self.drop_path, 2 if self.fresh else 1):
            check_branches(self.encoder.name, self.encoder.model.blocks)  # type: ignore[arg-type]
        kept = ("dtype", *(name for name in EXTENDABLE_FIELDS if name not in ("data", "n_images")))
        if differ := self.training.spec.explained(self._request.spec, kept):
            remedy = "name the images and the encoder that it was extracted from, with their options"
            source = f"{self.images.source} through {self.encoder.name} as it is loaded"
            raise StoreError(f"{self.training.where} is not of {source}: {differ} differ; {remedy}")

    @cached_property
    def _request(self) -> Request:
        return Request.resolve(self.encoder, self.images, statistics=(), maps=False, truths="none")

    def batches(
        self,
        arrays: Mapping[str, str],
        source: Source,
        batch_size: int,
        device: torch.device,
        epochs: Sequence[int],
        share: Share,
    ) -> "LoopBatches":
        """As `probe.passes.Loop` has it."""
        self.encoder.model.to(device)
        names = {kind: ArrayName.parse(name) for kind, name in arrays.items()}

        def blocks(*kinds: str) -> tuple[int, ...]:
            return tuple(sorted({n.block for n in names.values() if n.kind in kinds and n.block is not None}))

        request = replace(
            self._request,
            blocks=blocks("patch", "registers"),
            map_blocks=blocks("attention"),
            vector_blocks=blocks("cls", "average"),
            pooled=any(name.kind == "pooled" for name in names.values()),
            drop_path=self.drop_path,
        )
        order = Order(source.rows, source.store.shard_rows, 1, max(1, len(source.rows)), shuffle=len(epochs) > 0)
        views = {seed: number if self.fresh else 0 for number, seed in enumerate(epochs, 1)}
        return LoopBatches(self, request, names, source.labels, order, batch_size, views, share)


@dataclass(frozen=True)
class LoopBatches:
    """Batches of one pass.

    Each of several processes takes every nth image of the order, so that together they take the steps of one. Where they cannot
    share the images evenly, some are shown twice.

    Attributes:
        names: of arrays to compute, by kind.
        labels: [N] or [N, C].
        views: that the epoch of a seed shows; view 0 if none.
    """

    loop: EncoderLoop
    request: Request
    names: Mapping[str, ArrayName]
    labels: np.ndarray
    order: Order
    batch_size: int
    views: Mapping[int, int] = field(default_factory=dict)
    share: Share = (0, 1)

    @property
    def n_rows(self) -> int:
        """Images of an epoch of this process."""
        return -(-len(self.order.rows) // self.share[1])

    def epoch(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """One pass.

        Raises:
            DataError: an image that the feature set has cannot be read any more.
            BeyondClsError: memory does not suffice for a single image.
        """
        rank, world_size = self.share
        view, visited = self.views.get(seed, 0), np.resize(self.order.visited(seed), self.n_rows * world_size)[rank::world_size]
        names = {kind: str(replace(name, view=view)) for kind, name in self.names.items()}
        parts = (visited[begin : begin + self.batch_size] for begin in range(0, len(visited), self.batch_size))
        units = (Unit(number, rows.tolist(), list(names.values())) for number, rows in enumerate(parts))
        with ThreadPoolExecutor(self.loop.workers, "beyondcls-crops") as threads:
            passes = Passes(self.request, self.loop.batch_size, threads, self.loop.warn)
            tokens: dict[str, Tensor] = {}
            for batch in passes.batches(units):
                rows = batch.unit.rows
                if problem := next((image.problem for image in batch.images if image.problem is not None), None):
                    raise DataError(f"{problem}\nmend the data, or extract its features again")
                if batch.first == 0:
                    tokens = {}
                for positions, encoded in passes.encode(batch, view, range(len(batch.images)), passes.encoded):
                    features = arrays_by_name(encoded, view)
                    for kind, name in names.items():
                        values = features[name]
                        if kind not in tokens:  # autograd takes no tensors of inference mode, so they are copied
                            tokens[kind] = torch.empty(len(rows), *values.shape[1:], device=values.device)
                        tokens[kind][positions[0] : positions[-1] + 1] = values
                if batch.is_last:
                    described = {"label": torch.from_numpy(self.labels[rows]), "row": torch.tensor(rows)}
                    yield {**tokens, **{name: values.to(self.request.encoder.device) for name, values in described.items()}}
