"""A vote of all training images, nearer ones count more."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from probe.closed.protocol import (
    Closed,
    Result,
    Scaling,
    Vectors,
    check_grid,
    check_pair,
    edge_note,
    measured,
    notes_on,
    select,
)


@dataclass(frozen=True)
class Parzen(Closed):
    """Votes weighted by exp(-d² / 2h²), the distance d in standard deviations of the training images; 0 is an even vote.

    Attributes:
        bandwidths: the grid of h.
        share, seed: of the hold-out on which h is selected; the largest of the best is taken.

    Source: Parzen 1962.
    """

    grid: ClassVar[str] = "bandwidths"

    bandwidths: tuple[float, ...] = (0.5, 1, 2, 4)
    share: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_grid("bandwidths", self.bandwidths)
        object.__setattr__(self, "bandwidths", tuple(sorted(self.bandwidths, reverse=True)))

    def fit(self, training: Vectors, test: Vectors) -> Result:
        check_pair(training, test)
        selection = select(self.bandwidths, training, self.share, self.seed, self._votes)
        (scores,) = Parzen((selection.best,))._votes(training, test)
        said = (*edge_note("bandwidth", selection.best, self.bandwidths), *notes_on(training, test))
        return Result(scores, {"bandwidth": selection.best}, selection, measured(scores, test), said)

    def _votes(self, known: Vectors, asked: Vectors) -> Iterator[Float[Tensor, "N K"]]:
        scaling, labels = Scaling.from_vectors(known.x, standardise=True), known.labels
        classes = labels.double() if known.multilabel else torch.nn.functional.one_hot(labels, known.n_classes).double()
        distance = torch.cdist(scaling(asked.x), scaling(known.x), compute_mode="donot_use_mm_for_euclid_dist")
        for bandwidth in self.bandwidths:
            weights = torch.softmax(-(distance**2) / (2 * bandwidth**2), 1)
            scores = weights @ classes * 2 - 1
            ruled_out = ~classes.any(0) & (not known.multilabel)
            yield scores.masked_fill(ruled_out, -torch.inf).float().cpu()
