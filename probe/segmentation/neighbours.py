"""k nearest patches: the labels of patches without any training, by an exact search for several measures from one product."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int, Int16
from torch import Tensor

from probe.closed.protocol import METRICS, check_grid
from probe.cores import cores
from probe.segmentation.patches import Patches, channel_scale
from store import BeyondClsError
from store.errors import unknown

REFERENCES, QUERIES = 1024, 512  # compared at once: 2 MB of similarities, which stay in a core's cache
GROUP = 32  # similarities of which only the largest is looked at, unless it is among the nearest

Metric = str  # of probe.closed.protocol.METRICS
QUERIES_AT_ONCE = 1 << 14  # patches whose neighbours are searched in one reading of the training patches
VOTES_AT_ONCE = 1 << 13


def nearest_rows(
    queries: Float[Tensor, "N D"],
    references: Iterable[Float[Tensor, "_n D"]],
    k: int,
    metrics: Sequence[Metric],
    progress: Callable[[int], None] = lambda n: None,
) -> dict[Metric, Int[Tensor, "N k"]]:
    """Rows of the k nearest references of each query, nearest first, by each metric.

    All metrics follow from one product with the normalised references. Similarities are float32; of equally near ones the
    lower row comes first.

    Args:
        references: blocks of at most `REFERENCES` rows, whose memory may be used again for the next block; there are k or
            more rows in all.
        progress: called with the number of references of each block.
    """
    nearest = {metric: _Nearest.empty(queries, k) for metric in sorted(metrics)}  # cosines first: they are the product itself
    parts = [slice(start, min(start + QUERIES, len(queries))) for start in range(0, len(queries), QUERIES)]
    buffers, first_row = threading.local(), 0
    with cores(queries.device) as on_all:
        for block in references:
            n, norm = len(block), block.norm(dim=1)
            units = block.new_zeros(-(-n // GROUP) * GROUP, block.shape[1])  # padded to whole groups
            torch.div(block, norm.clamp(min=1e-12)[:, None], out=units[:n])
            on_all(partial(_compare, queries, units, norm, first_row, nearest, buffers), parts)
            first_row += n
            progress(n)
    return {metric: found.sorted_rows() for metric, found in nearest.items()}


def _compare(
    queries: Float[Tensor, "N D"],
    units: Float[Tensor, "M D"],
    norm: Float[Tensor, "n"],
    first_row: int,
    nearest: Mapping[Metric, "_Nearest"],
    buffers: threading.local,
    part: slice,
) -> None:
    """Compare some queries with a block of n references, divided by their norms."""
    product = torch.mm(queries[part], units.T, out=_buffer(buffers, queries[part], len(units)))
    for metric, found in nearest.items():
        if metric == "euclidean":  # -½ |q - r|², but for ½ |q|², which is the same for all references
            torch.addcmul(norm.square() / -2, product[:, : len(norm)], norm, out=product[:, : len(norm)])
        product[:, len(norm) :] = -torch.inf
        found.add(part, product, first_row)


def _buffer(buffers: threading.local, queries: Tensor, width: int) -> Tensor:
    """Memory of this thread, used again: fresh memory would take longer to get than to fill."""
    memory = getattr(buffers, "memory", None)
    if memory is None or memory.numel() < len(queries) * width:
        memory = buffers.memory = queries.new_empty(len(queries) * width)
    return memory[: len(queries) * width].view(len(queries), width)


@dataclass(eq=False)
class _Nearest:
    """The nearest so far by one metric.

    Attributes:
        similarity: of each query, its k best so far, in no order.
        row: of each of them.
        least: the smallest of them: what is not nearer need not be looked at.
    """

    similarity: Float[Tensor, "N k"]
    row: Int[Tensor, "N k"]
    least: Float[Tensor, "N"]

    @classmethod
    def empty(cls, queries: Tensor, k: int) -> "_Nearest":
        similarity = torch.full((len(queries), k), -torch.inf, device=queries.device)
        return cls(similarity, torch.zeros_like(similarity, dtype=torch.int64), similarity[:, 0].clone())

    def add(self, part: slice, similarity: Float[Tensor, "B M"], first_row: int) -> None:
        """Compare a block: columns are references from `first_row` on.

        Of each group of columns only the largest is compared with the k-th best so far; a group that has something nearer
        is then looked at whole. After the first block few are.
        """
        least = self.least[part]
        groups = similarity.unflatten(1, (GROUP, -1))  # [B, GROUP, M / GROUP]
        query, group = (groups.amax(1) > least[:, None]).nonzero(as_tuple=True)
        if len(query) > groups.shape[2] * len(least) // 2:  # as with the first block
            values, column = similarity.topk(min(self.similarity.shape[1], similarity.shape[1]))
            self._merge(part, values, column + first_row)
            return
        if not len(query):
            return
        members = groups[query, :, group]  # [n, GROUP]
        of_group, place = (members > least[query, None]).nonzero(as_tuple=True)
        values, column = members[of_group, place], place * groups.shape[2] + group[of_group]
        query = query[of_group]
        counts = torch.bincount(query, minlength=len(least))
        position = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
        near = similarity.new_full((len(least), int(counts.max())), -torch.inf)
        rows = torch.zeros_like(near, dtype=torch.int64)
        near[query, position], rows[query, position] = values, column + first_row
        self._merge(part, near, rows)

    def _merge(self, part: slice, similarity: Tensor, row: Tensor) -> None:
        both, rows = torch.cat([self.similarity[part], similarity], 1), torch.cat([self.row[part], row], 1)
        best = both.topk(self.similarity.shape[1], sorted=True)
        self.similarity[part], self.row[part] = best.values, rows.gather(1, best.indices)
        self.least[part] = best.values[:, -1]

    def sorted_rows(self) -> Int[Tensor, "N k"]:
        """Rows of the nearest, nearest first; of equally near ones the lower row first."""
        row, order = self.row.sort(1)
        nearest_first = self.similarity.gather(1, order).sort(dim=1, descending=True, stable=True).indices
        return row.gather(1, nearest_first)


@dataclass(frozen=True)
class PatchNeighbours:
    """Majority of the k nearest training patches; of equally frequent classes the lowest.

    Attributes:
        ks, metrics: the grid, as CAPI's; one product serves all of its points.
        standardise: each channel by its mean and standard deviation over the training patches.
    """

    ks: tuple[int, ...] = (1, 3, 10, 30)
    metrics: tuple[str, ...] = METRICS
    standardise: bool = True

    def __post_init__(self) -> None:
        check_grid("ks", self.ks, whole=True)
        for metric in self.metrics:
            if metric not in METRICS:
                raise BeyondClsError(unknown("metric", metric, METRICS))

    @property
    def grid(self) -> list[tuple[str, int]]:
        """(metric, k), the smallest k first."""
        return [(metric, k) for k in sorted(self.ks) for metric in self.metrics]

    def predict(
        self,
        training: Patches,
        test: Patches,
        settings: Sequence[tuple[str, int]],
        progress: Callable[[int], None] = lambda n: None,
    ) -> dict[tuple[str, int], Int16[np.ndarray, "N T"]]:
        """The label of each test patch, void ones included, by each (metric, k).

        Args:
            progress: called with the number of pairs of patches that were compared since the last call.

        Raises:
            BeyondClsError: fewer labelled training patches than k.
        """
        most = max(k for _, k in settings)
        if training.n_labelled < most:
            raise BeyondClsError(
                f"k is {most}, but the training images have {training.n_labelled} labelled patches; give a smaller k"
            )
        mean, scale = channel_scale(training, True) if self.standardise else (torch.tensor(0.0), torch.tensor(1.0))

        def scaled(tokens: Tensor) -> Tensor:
            return tokens.sub_(mean).mul_(scale)  # a block's memory is its own, and the next block overwrites it

        labels = torch.from_numpy(training.labels[training.rows].astype(np.int64)).flatten().to(training.device)
        labels = labels[labels >= 0]
        predicted: dict[tuple[str, int], list[Tensor]] = {setting: [] for setting in settings}
        metrics = list(dict.fromkeys(metric for metric, _ in settings))
        for queries, _ in test.blocks(QUERIES_AT_ONCE, labelled=False):
            references = (scaled(tokens) for tokens, _ in training.blocks(REFERENCES))
            n = len(queries)
            counted = lambda n_references, n=n: progress(n * n_references)  # noqa: E731
            rows = nearest_rows(scaled(queries), references, most, metrics, counted)
            for metric, k in settings:
                neighbours = labels[rows[metric][:, :k]]
                votes = [_vote(part, training.n_classes) for part in neighbours.split(VOTES_AT_ONCE)]
                predicted[metric, k].append(torch.cat(votes).to("cpu", torch.int16))
        return {setting: torch.cat(parts).view(len(test), -1).numpy() for setting, parts in predicted.items()}


def _vote(labels: Int[Tensor, "n k"], n_classes: int) -> Int[Tensor, "n"]:
    """The most frequent label of each row, of equally frequent ones the lowest."""
    votes = torch.zeros(len(labels), n_classes, dtype=torch.int32, device=labels.device)
    return votes.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.int32)).argmax(1)
