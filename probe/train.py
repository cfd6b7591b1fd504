"""Training many heads in one pass over the features."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from probe.aggregators import Features
from probe.evaluate import Batches, evaluate
from probe.grid import Member
from probe.head import FinalNorm
from probe.optim import OPTIMISERS, Optimiser, learning_rate
from probe.ranks import rank, sum_over_ranks, world_size
from probe.recipe import Recipe
from probe.stack import Stack
from store import BeyondClsError


@dataclass(frozen=True)
class Piece:
    """The part of a step's images that one process computes at once.

    Attributes:
        step: the step that it belongs to, of `n_steps` in an epoch; `n_steps` itself for a rest that is dropped.
        rows: number of images.
        rows_of_step: number of images that all processes compute in the step.
        skip: not computed: a rest that the recipe drops, or a single image, which has no variance for batch normalisation.
            Such images are seen in other epochs.
        ends_step: parameters are updated after it.
    """

    step: int
    n_steps: int
    rows: int
    rows_of_step: int
    skip: bool
    ends_step: bool


def pieces(n_rows: int, recipe: Recipe) -> list[Piece]:
    """The pieces of an epoch over the `n_rows` images of one process; all processes have the same number of images.

    Raises:
        BeyondClsError: a batch cannot be shared by the processes, or there is nothing to train on.
    """
    world = world_size()
    if n_rows * world < 2:
        raise BeyondClsError(f"images to train on: {n_rows}, expected 2 or more")
    batch, at_once = recipe.per_process(world)
    n_batches = -(-n_rows // batch)
    n_steps = max(1, n_rows // batch) if recipe.drop_last else n_batches
    epoch_pieces = []
    for step in range(n_batches):
        rows = min(batch, n_rows - step * batch)
        sizes = [min(at_once, rows - begin) for begin in range(0, rows, at_once)]
        skips = [step == n_steps or size * world == 1 for size in sizes]
        computed = sum(size for size, skip in zip(sizes, skips, strict=True) if not skip) * world
        for number, (size, skip) in enumerate(zip(sizes, skips, strict=True), 1):
            epoch_pieces.append(Piece(step, n_steps, size, computed, skip, number == len(sizes) and computed > 0))
    return epoch_pieces


@dataclass(frozen=True)
class Course:
    """The schedule of one pass.

    Attributes:
        pieces: of every epoch.
        seeds: one an epoch, for the order of its images, the views that are shown, and what aggregators draw.
        shares: the learning rate of each step of each epoch, as a share of its peak.
    """

    pieces: list[Piece]
    seeds: list[int]
    shares: list[list[float]]

    @classmethod
    def from_recipe(cls, n_rows: int, recipe: Recipe, order: int) -> "Course":
        """The course over the `n_rows` images of one process; `order` is the seed of their order.

        Raises:
            BeyondClsError: batches that cannot be shared by the processes, or fewer than two images.
        """
        epoch_pieces = pieces(n_rows, recipe)
        n = epoch_pieces[-1].n_steps
        steps = [[epoch + step / n for step in range(n)] for epoch in range(recipe.epochs)]
        shares = [[learning_rate(at, 1.0, recipe.epochs, recipe.warmup_epochs) for at in of_epoch] for of_epoch in steps]
        return cls(epoch_pieces, [epoch_seed(order, epoch) for epoch in range(recipe.epochs)], shares)


def epoch_seed(order: int, epoch: int) -> int:
    """Seed of an epoch's order; no two (order, epoch) share one."""
    return int(np.random.SeedSequence([order, epoch]).generate_state(1, np.uint64)[0])


@dataclass
class Family:
    """Members that are computed together, and the state of each.

    Attributes:
        stack: the members that still train.
        base_lr, weight_decay: of each member, [M].
        names: of each member, as the caller knows it.
        curves: of each member, one entry per epoch: epoch, loss, with one label an image train_top1, and measures of the test
            images.
        lost: notes on members that diverged, by name; they are no longer in the above.
    """

    stack: Stack
    base_lr: Float[Tensor, "M"]
    weight_decay: Float[Tensor, "M"]
    names: list[Any]
    curves: list[list[dict[str, float]]] = field(default_factory=list)
    lost: dict[Any, str] = field(default_factory=dict)
    optimiser: Optimiser | None = None

    @classmethod
    def of(cls, stack: Stack, members: Sequence[Member]) -> "Family":
        """The members of a stack, which have their learning rates and weight decays."""
        device = stack.parameters["classifier.weight"].device
        values = torch.tensor([[m.base_lr, m.weight_decay] for m in members], dtype=torch.float64, device=device)
        return cls(stack, values[:, 0], values[:, 1], list(members))

    def __post_init__(self) -> None:
        self.curves = self.curves or [[] for _ in self.names]

    def begin(self, recipe: Recipe) -> None:
        """Make the optimiser."""
        self.optimiser = OPTIMISERS[recipe.optimiser](self.stack.parameters, self.weight_decay, recipe.momentum)

    def keep(self, members: Sequence[int]) -> None:
        """Keep only some of the members."""
        self.stack.keep(members)
        index = torch.tensor(members, dtype=torch.long, device=self.weight_decay.device)
        self.base_lr, self.weight_decay = self.base_lr[index], self.weight_decay[index]
        self.names, self.curves = [self.names[m] for m in members], [self.curves[m] for m in members]
        if self.optimiser is not None:
            self.optimiser.keep(self.stack.parameters, index)


def train(
    families: Sequence[Family],
    training: Batches,
    test: Batches | None,
    recipe: Recipe,
    order: int = 0,
    *,
    final_norm: FinalNorm | None = None,
    start: int = 0,
    after_epoch: Callable[[int], None] | None = None,
    warn: Callable[[str], None] | None = None,
    losses: Callable[[Tensor, Mapping[str, Any]], Float[Tensor, "M"]] | None = None,
) -> None:
    """Train the members of all families on the same batches; each takes the steps that it would take alone, dropout aside.

    `train_top1` is the percentage of the images of an epoch that a head classified correctly when it learnt from them: from the
    logits that its gradients come from, with batch normalisation by the batch. So it costs nothing, and is a little below what
    the head at the end of that epoch would reach on the training images, the more so the faster it learns. With several labels
    an image there is no such measure: their ranking needs the scores of all images at once.

    A member whose loss is no longer finite is dropped at the end of the epoch, with a note; the others are not affected.

    Args:
        training: batches of `recipe.at_once` images; several make a step.
        test: measured after each epoch; not shuffled.
        order: seed of the images' order, and of the views that are shown.
        final_norm: applied to the tokens for those heads that use it.
        start: number of epochs that are already done.
        after_epoch: called with the number of epochs that are done.
        warn: called with a note on each member that is dropped.
        losses: each member's loss, summed over the images, from its logits and the batch; `losses_of` by default.

    Raises:
        BeyondClsError: batches that cannot be shared by the processes, fewer than two images, or features that are not finite.
    """
    families = [family for family in families if len(family.stack)]
    for family in families:
        if family.optimiser is None:
            family.begin(recipe)
    course = Course.from_recipe(training.n_rows, recipe, order)
    for epoch in range(start, recipe.epochs if families else 0):
        sums = [torch.zeros(2, len(f.stack), dtype=torch.float64, device=f.base_lr.device) for f in families]
        seed = course.seeds[epoch]
        with isolated_randomness(seed):
            for piece, batch in zip(course.pieces, training.epoch(seed), strict=True):
                assert len(batch["label"]) == piece.rows
                if not piece.skip:
                    normalised = final_norm(batch) if final_norm is not None else batch
                    for family, total in zip(families, sums, strict=True):
                        features: Features = batch if family.stack.template.final_norm is None else normalised
                        logits, _ = family.stack(features, training=True)
                        loss = losses_of(logits, batch["label"]) if losses is None else losses(logits, batch)
                        (loss.sum() / piece.rows_of_step).backward()
                        total[0] += loss.detach()
                        if batch["label"].ndim == 1:
                            total[1] += (logits.detach().mT.max(1).indices == batch["label"]).sum(-1)
                if piece.ends_step:
                    rate = recipe.peak(course.shares[epoch][piece.step])  # of a member whose base is 1
                    for family in families:
                        assert family.optimiser is not None
                        sum_over_ranks(*(p.grad for p in family.stack.parameters.values() if p.grad is not None))
                        family.optimiser.step(family.base_lr * rate)
        n_seen = sum(piece.rows for piece in course.pieces if not piece.skip) * world_size()
        multilabel = batch["label"].ndim > 1
        for family, total in zip(families, sums, strict=True):
            sum_over_ranks(total)
            measures = {"loss": total[0] / n_seen} | ({} if multilabel else {"train_top1": 100 * total[1] / n_seen})
            _end_epoch(family, measures, epoch, partial(_check_finite, training, seed), warn)
        families = [family for family in families if len(family.stack)]
        if test is not None and families:
            for family, measured in zip(families, evaluate([f.stack for f in families], test, final_norm), strict=True):
                for curve, of_test in zip(family.curves, measured.measures, strict=True):
                    curve[-1].update(of_test)
        if after_epoch:
            after_epoch(epoch + 1)
        if not families:
            return


def _end_epoch(
    family: Family,
    measures: dict[str, Float[Tensor, "M"]],
    epoch: int,
    check: Callable[[], None],
    warn: Callable[[str], None] | None,
) -> None:
    """Record what was measured during the epoch, and drop members whose loss or parameters are no longer finite.

    Where all are dropped, `check` their features.
    """
    means = measures["loss"].tolist()
    finite = torch.stack([p.isfinite().reshape(len(p), -1).all(1) for p in family.stack.parameters.values()]).all(0).tolist()
    rows = zip(*(values.tolist() for values in measures.values()), strict=True)
    for curve, values in zip(family.curves, rows, strict=True):
        curve.append({"epoch": epoch + 1, **dict(zip(measures, values, strict=True))})
    lost = [m for m, mean in enumerate(means) if not (math.isfinite(mean) and finite[m])]
    if len(lost) == len(means):
        check()
    for m in lost:
        note = f"diverged in epoch {epoch + 1} (loss {means[m]:.3g}) with base_lr {family.base_lr[m].item():.3g}; lower it"
        family.lost[family.names[m]] = note
        if warn:
            warn(f"{family.names[m]} {note}")
    if lost:
        family.keep([m for m in range(len(means)) if m not in lost])


def _check_finite(training: Batches, seed: int) -> None:
    """Refuse features that are not finite."""
    for batch in training.epoch(seed):
        for name, values in batch.items():
            if isinstance(values, Tensor) and (wrong := ~values.isfinite().reshape(len(values), -1).all(1)).any():
                raise BeyondClsError(
                    f"features {name!r} of {int(wrong.sum())} images are not finite, the first of them in row "
                    f"{int(batch['row'][wrong].min())}; extract them again, or leave these rows out"
                )


@contextmanager
def isolated_randomness(seed: int) -> Iterator[None]:
    """Random numbers, of dropout for example, that depend on the seed only and leave the global generators as they were.

    Each process, and each member, draws different numbers: with dropout a member does not take the steps it would take alone.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed((seed + rank()) % 2**63)
        yield


def losses_of(logits: Float[Tensor, "M B K"], labels: Tensor) -> Float[Tensor, "M"]:
    """Each member's loss, summed over the images: cross-entropy, or with several labels the mean binary cross-entropy."""
    if labels.ndim == 1:
        return F.cross_entropy(logits.mT, labels.expand(len(logits), -1), reduction="none").sum(1)
    target = labels.to(logits.dtype).expand(logits.shape)
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(2).sum(1)
