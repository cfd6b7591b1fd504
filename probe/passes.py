"""One pass: all members that train on the same images in the same order, with one reading of the features."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probe.aggregators import code_of, is_foreign
from probe.aggregators.custom import check_custom
from probe.checkpoint import Checkpoint, Unfinished, go_on
from probe.evaluate import Batches, evaluate
from probe.grid import Epoch, HeadSpec, Member
from probe.head import FinalNorm, Head
from probe.metrics import weight_entropy
from probe.needs import TooLarge, check_memory
from probe.pooled import PooledImages, PooledVectors, pool, vectors_fit
from probe.pooling import reads_stored
from probe.recipe import Recipe
from probe.sources import Source, check_labels
from probe.stack import Stack
from probe.train import Family, epoch_seed
from store import BeyondClsError, Loader
from store.loading.placement import Placement

Share = tuple[int, int]
SHARED = 0  # seed of the images' order where all seeds share it
FEW = 4  # images that a custom aggregator and the need of memory are tried on


class Loop(Protocol):
    """The training images with their encoder in front of the heads: tokens are computed again in every epoch.

    Attributes:
        fresh: whether the nth epoch shows the nth random crop of each image; otherwise all show the evaluation crop.
        drop_path: the rate of stochastic depth of these crops.
    """

    fresh: bool
    drop_path: float

    def batches(
        self,
        arrays: Mapping[str, str],
        source: Source,
        batch_size: int,
        device: torch.device,
        epochs: Sequence[int],
        share: Share,
    ) -> Batches:
        """Batches of the images `source.rows`, as a `store.Loader` gives them from features in memory.

        Args:
            arrays: names of arrays of view 0, by kind.
            epochs: seeds of the epochs of training, in turn; none: images in the order of their rows, by evaluation crops.
            share: number of this process, and how many share each batch.
        """


@dataclass
class Outcome:
    """A member that was trained.

    Attributes:
        head: the trained head, on the CPU.
        curve: one entry per epoch: epoch, loss, and measures of the test images if they were measured then.
        result: measures of the images that the head was judged by, after the last epoch.
        weights: over the tokens of those images ([cls] before the patches), if they were kept and there are any.
        correct: whether its highest logit is the class of each of those images, in the order of their rows; None where images
            have several labels.
        converged: the same for a converged classifier on the same vectors, if one was fitted (`probe.convergence`).
        without: mAP without each group of these images in turn (`probe.subsets`), where images have several labels.
    """

    member: Member
    head: Head
    curve: list[dict[str, float]]
    result: dict[str, float]
    weights: Float[Tensor, "N T"] | None = None
    correct: Bool[Tensor, "N"] | None = None
    converged: Bool[Tensor, "N"] | None = None
    without: Sequence[float] = ()


@dataclass
class HeadPasses:
    """Trains members on a training set, and judges them by a test set or by other images of the training set.

    Heads without parameters in their aggregator need only each image's vector: it is pooled once, if memory suffices.

    Args:
        heads: specifications by name.
        training, test: images to train on and to measure on.
        views: of the training images, one of which is shown at random in each epoch. Images are judged by view 0.
        unfinished: for checkpoints, which stay until the caller removes them; None for no checkpoints.
        say: called with messages for the user: where features are, how fast they were read, which member diverged.
        progress: called with the number of epochs since the last call, summed over members.
        on_epoch: called by the first process after each epoch, for each member that still trains.
        stops: whether to stop after the present epoch, where its state can be saved; of several processes the first decides.
        rank, world_size: of several processes, each of which trains on its own shards and is judged by all images.
        loop: gives the tokens of the training images, of which the stored ones are not read then.
        draws: rows of the training set by seed, where each seed has its own (recipe.order is "own" then); `training` has all
            of them. None by default.

    Attributes:
        lost: members that diverged, with a note.
        kept_heads: heads that do not train. Batches are as if they did: where features are streamed, the order of the images
            depends on all that is read.

    Raises:
        BeyondClsError: unknown aggregator or options, or a custom aggregator that fails on the first images.
        StoreError: a set lacks what a head reads, or labels to learn from or to measure by.
    """

    heads: Mapping[str, HeadSpec]
    training: Source
    test: Source
    views: Sequence[int] = (0,)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    placement: Placement = "auto"
    unfinished: Unfinished | None = None
    say: Callable[[str], None] = field(default=lambda message: None)
    progress: Callable[[int], None] = field(default=lambda n: None)
    on_epoch: Callable[[Epoch], None] | None = None
    stops: Callable[[], bool] = field(default=lambda: False)
    rank: int = 0
    world_size: int = 1
    loop: Loop | None = None
    draws: Mapping[int, np.ndarray] = field(default_factory=dict)
    lost: dict[Member, str] = field(default_factory=dict)
    kept_heads: set[str] = field(default_factory=set)
    _templates: dict[str, Head] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in self.heads:
            reads = self.template(name).aggregator.reads
            for source, views in self._stored:
                for kind in reads:
                    source.arrays(kind, views)
            if is_foreign(named := self.heads[name].aggregator):  # try it on the first images
                first_images = self.shapes.part(self.shapes.rows[:FEW]).loader(reads, batch_size=FEW, shuffle=False)
                batch = next(iter(first_images.epoch()))
                check_custom(named, self.template(name).aggregator, {kind: batch[kind] for kind in reads}, self.n_patches)
        for learnt in [self.learnt_by(seed) for seed in self.draws] or [self.training]:
            check_labels(learnt, self.test)

    def learnt_by(self, seed: int) -> Source:
        """The training images of a seed."""
        return self.training.part(self.draws[seed]) if self.draws else self.training

    @property
    def n_training(self) -> int:
        """Images that each seed is trained on."""
        return len(next(iter(self.draws.values()), self.training.rows))

    def train(
        self,
        members: Sequence[Member],
        recipe: Recipe,
        rows: np.ndarray | None = None,
        judged_by: np.ndarray | None = None,
    ) -> list[Outcome]:
        """Train members side by side; those that diverge are left out, and noted in `lost`.

        Args:
            rows: images of the training set to train on; by default all, or those that its seed draws.
            judged_by: other images of the training set to be judged by; all of the test set, after each epoch, by default.

        Raises:
            BeyondClsError: memory does not suffice, or there is only one image.
            Stopped: `stops` says so; the state of the pass is saved.
        """
        judge_by = self.test if judged_by is None else self.training.part(judged_by)
        outcomes: list[Outcome] = []
        for order in sorted({member.seed for member in members}) if recipe.order == "own" else [SHARED]:
            learn_from = self.learnt_by(order) if rows is None else self.training.part(rows)
            if (n := len(learn_from.rows)) < 2:
                raise BeyondClsError(f"there is {n} image to train on, expected 2 or more; use a larger subset")
            for uses_vectors in (False, True):
                of_pass = [m for m in members if recipe.order == "shared" or m.seed == order]
                of_pass = sorted(m for m in of_pass if self._uses_vectors(m.head) == uses_vectors)
                if any(member.head not in self.kept_heads for member in of_pass):
                    outcomes += self._train_in_parts(of_pass, recipe, order, learn_from, judge_by)
        return outcomes

    def vectors(self, name: str) -> tuple[PooledVectors, PooledVectors]:
        """Vectors of the training and test images, for a head whose aggregator has no parameters.

        Raises:
            BeyondClsError: the aggregator has parameters, or memory does not suffice.
        """
        if self.template(name).aggregator.trainable:
            raise BeyondClsError(
                f"aggregator {self.heads[name].aggregator!r} has parameters to train; a protocol without gradient steps "
                "needs one without parameters, e.g. cls or average"
            )
        if name not in self._pooled_vectors:
            raise BeyondClsError(f"memory does not suffice for the vectors of {len(self.training.rows):,} images; use a subset")
        return self._pooled_vectors[name]

    def vectors_of(self, outcome: Outcome) -> tuple[Float[Tensor, "n W"], Float[Tensor, "N W"]]:
        """What a trained head's aggregator makes of the evaluation crops of its training and all test images, on the device.

        Raises:
            BeyondClsError: memory does not suffice.
        """
        name, learnt = outcome.member.head, self.learnt_by(outcome.member.seed)
        sides = (learnt, self.test)
        if name in self._pooled_vectors:
            training, test = (self._vectors(name, source, (0,))[0] for source in (self.training, self.test))
            return training[self.places(learnt)] if self.draws else training, test
        to_pool = {name: copy.deepcopy(outcome.head)}
        n = sum(len(source.rows) for source in sides)
        if not vectors_fit(to_pool, n, self.device):
            raise BeyondClsError(f"memory does not suffice for the vectors of {n:,} images")
        training, test = (pool(to_pool, source, (0,), self.device)[name].vectors[0] for source in sides)
        return training, test

    def places(self, learnt: Source) -> np.ndarray:
        """Where the images that a seed learns from are among those of `training`."""
        return np.searchsorted(self.training.rows, learnt.rows)

    def template(self, name: str) -> Head:
        """A head as it starts with seed 0; callers must not change it."""
        if name not in self._templates:
            self._templates[name] = self._build(name)
        return self._templates[name]

    @property
    def n_patches(self) -> int | None:
        """T, the number of patch tokens of an image; None for a set without patch tokens."""
        return self.shapes.n_patches

    @property
    def shapes(self) -> Source:
        """The source whose stored features show what heads read."""
        return self.training if self.loop is None else self.test

    @property
    def shown(self) -> Sequence[int] | None:
        """Stored views that training shows; None where every epoch shows a fresh crop."""
        return None if self.loop is not None and self.loop.fresh else self.views

    @property
    def drop_path(self) -> float:
        """The rate of stochastic depth of the random crops that training shows."""
        return self.training.store.spec.drop_path if self.loop is None else self.loop.drop_path

    @property
    def _stored(self) -> Sequence[tuple[Source, Sequence[int]]]:
        """Sources whose stored features are read, and their views."""
        of_training = [(self.training, self.views)] if self.loop is None else []
        return [*of_training, (self.test, (0,))]

    def _train_in_parts(
        self, members: list[Member], recipe: Recipe, order: int, learn_from: Source, judge_by: Source
    ) -> list[Outcome]:
        """One pass, or one for each half of the heads where memory does not suffice for all: what they learn is the same."""
        heads = sorted({member.head for member in members if member.head not in self.kept_heads})
        try:
            return self._pass(members, recipe, order, learn_from, judge_by)
        except TooLarge:
            if len(heads) == 1 or self.world_size > 1:  # processes may have different memory, but must take the same steps
                raise
        halves = heads[: len(heads) // 2], heads[len(heads) // 2 :]
        self.say(f"memory does not suffice for all at once: {', '.join(halves[0])} train first, then {', '.join(halves[1])}")
        parts = ([member for member in members if member.head in half] for half in halves)
        return [one for part in parts for one in self._train_in_parts(part, recipe, order, learn_from, judge_by)]

    def _pass(self, members: list[Member], recipe: Recipe, order: int, learn_from: Source, judge_by: Source) -> list[Outcome]:
        names = sorted({member.head for member in members})
        norm = None if self._uses_vectors(names[0]) else self._final_norm  # vectors are of normalised tokens already
        members = [member for member in members if member.head not in self.kept_heads]
        families = []
        for name, group in groupby(members, lambda m: m.head):
            of_head, vectors = list(group), name if self._uses_vectors(name) else None
            heads = [self._build(name, member.seed) for member in of_head]
            families.append(Family.of(Stack(heads, self.device, vectors), of_head))
            families[-1].begin(recipe)
        first_images = self._batches(names, learn_from.part(learn_from.rows[:FEW]), recipe, self.views[:1])
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # an aggregator may draw random numbers
            check_memory(families, next(iter(first_images.epoch())), recipe, self.device, norm)
        learn = self._batches(names, learn_from, recipe, self.views, order)
        judge = self._batches(names, judge_by, recipe)
        streamed = isinstance(learn, Loader) and learn.placement == "stream"  # in another order than features in memory
        if isinstance(learn, Loader):
            self.say(f"features in {learn.reason}")
        if self.loop is not None:
            self.say(f"encoder in the loop: a pass over {len(learn_from.rows):,} images an epoch, for {len(members)} trainings")
        checkpoint = self._checkpoint(members, recipe, order, learn_from, judge_by, streamed)
        each_epoch, stage = (judge, "training") if judge_by is self.test else (None, "selection")
        called: dict[str, Any] = {"say": self.say, "progress": self.progress, "on_epoch": self.on_epoch, "stops": self.stops}
        start = go_on(families, learn, each_epoch, recipe, order, checkpoint=checkpoint, stage=stage, final_norm=norm, **called)
        if isinstance(learn, Loader) and start < recipe.epochs:
            self.say(f"read at {learn.stats}")
        for family in families:
            self.lost |= family.lost
        return self._outcomes([f for f in families if len(f.stack)], judge, norm, judge_by)

    def _outcomes(self, families: list[Family], judge: Batches, norm: FinalNorm | None, judge_by: Source) -> list[Outcome]:
        outcomes, final = [], judge_by is self.test
        measured = evaluate([f.stack for f in families], judge, norm, last=final) if families else []
        for family, scored in zip(families, measured, strict=True):
            weights, name = scored.weights, family.names[0].head
            if final and self._uses_vectors(name) and (fixed := self._pooled_vectors[name][1].weights) is not None:
                weights, entropy = fixed.expand(len(family.stack), *fixed.shape), weight_entropy(fixed).mean().item()
                for measures in (*scored.measures, *(entry for curve in family.curves for entry in curve)):
                    measures["entropy"] = entropy  # the same for all members, as nothing that is trained enters
            for m, member in enumerate(family.names):
                kept = {"weights": weights, "correct": scored.correct, "without": scored.without or None}
                of_images: dict[str, Any] = {name: values[m] for name, values in kept.items() if values is not None}
                outcomes.append(Outcome(member, family.stack.head(m), family.curves[m], scored.measures[m], **of_images))
        return outcomes

    def _build(self, name: str, seed: int = 0) -> Head:
        dim, n_classes = self.shapes.dim, self.training.store.n_classes
        head = self.heads[name].build(dim, self.n_patches, n_classes, self._final_norm, seed)
        self.use_vectors(head)
        self.shapes.check_width(head.aggregator.reads, dim)
        if head.aggregator.needs_square:
            self.shapes.check_square(self.heads[name].aggregator)
        return head

    def use_vectors(self, head: Head) -> None:
        """Let a head read vectors in place of tokens.

        What feature sets describe decides, not what this copy of them has: results depend on the keys alone.
        """
        head.use_vectors(lambda kind: all(source.describes(kind, {0, *views}) for source, views in self._stored))

    def _batches(
        self, names: Sequence[str], source: Source, recipe: Recipe, views: Sequence[int] = (0,), order: int | None = None
    ) -> Batches:
        """Batches of what these heads read, in one of the views at random; for training, shuffled as `order` says."""
        shuffle = order is not None
        size = recipe.per_process(self.world_size)[1] if shuffle else recipe.at_once
        if self._uses_vectors(names[0]):
            whole = self.test if source is self.test else self.training
            vectors = {name: self._vectors(name, whole, views) for name in names}
            return PooledImages(vectors, whole, size, shuffle, source.rows)
        heads = [self.template(name) for name in names]
        kinds = sorted({kind for head in heads for kind in head.aggregator.reads})
        if self.loop is not None and source is not self.test:
            arrays = {kind: self.test.arrays(kind)[0].name for kind in kinds}
            epochs = [] if order is None else [epoch_seed(order, epoch) for epoch in range(recipe.epochs)]
            share = (self.rank, self.world_size) if shuffle else (0, 1)
            return self.loop.batches(arrays, source, size, self.device, epochs, share)
        options: dict[str, Any] = {"batch_size": size, "device": self.device, "placement": self.placement, "shuffle": shuffle}
        if shuffle:
            options |= {"rank": self.rank, "world_size": self.world_size}
        if reads_stored(self.device) and all(head.aggregator.takes_stored and head.final_norm is None for head in heads):
            options["dtype"] = "stored"  # half the bytes or less, which the forward and the backward pass both read
        return source.loader(kinds, views, **options)

    def _checkpoint(
        self,
        members: Sequence[Member],
        recipe: Recipe,
        order: int,
        learn_from: Source,
        judge_by: Source,
        streamed: bool,
    ) -> Checkpoint | None:
        if self.unfinished is None:
            return None
        sets = [[s.store.spec.key, s.joined and s.joined.spec.key, s.block, s.rows.tolist()] for s in (learn_from, judge_by)]
        if judge_by.numbers is not None:  # by names, which no key holds
            sets[1].append(judge_by.numbers.tolist())
        specs = {member.head: self.heads[member.head] for member in members}
        heads = {n: [spec.to_dict(), code_of(spec.aggregator) or False] for n, spec in specs.items()}
        described: list[Any] = [[asdict(m) for m in members], heads, asdict(recipe), order, sets, list(self.views)]
        described += [self.world_size, streamed]
        if self.loop is not None:
            described.append({"in_the_loop": self.loop.fresh, "drop_path": self.loop.drop_path})
        if self.kept_heads and streamed:
            described.append(sorted(self.kept_heads))
        return Checkpoint(self.unfinished.path_of(described))

    @cached_property
    def _final_norm(self) -> FinalNorm | None:
        is_applied = any(spec.final_norm for spec in self.heads.values())
        return FinalNorm.from_store(self.training.store).to(self.device) if is_applied else None

    def _uses_vectors(self, name: str) -> bool:
        """Whether a head trains on vectors in memory; several processes share the tokens instead."""
        return self.world_size == 1 and self.loop is None and name in self._pooled_vectors

    def _vectors(self, name: str, source: Source, views: Sequence[int]) -> Float[Tensor, "V n W"]:
        """Vectors of all training or test images, in some views."""
        if source is self.test:
            return self._pooled_vectors[name][1].vectors
        all_vectors = self._pooled_vectors[name][0].vectors
        if tuple(views) == tuple(self.views):
            return all_vectors
        (view,) = views
        return all_vectors[list(self.views).index(view)][None] if view in self.views else self._pooled_by_view_0[name].vectors

    @cached_property
    def _heads_to_pool(self) -> dict[str, Head]:
        return {name: head for name in self.heads if not (head := self.template(name)).aggregator.trainable}

    @cached_property
    def _pooled_by_view_0(self) -> dict[str, PooledVectors]:
        """Vectors of the training images to be judged by, where training shows only crops and view 0 is not pooled yet."""
        return pool(self._heads_to_pool, self.training, (0,), self.device)

    @cached_property
    def _pooled_vectors(self) -> dict[str, tuple[PooledVectors, PooledVectors]]:
        """Vectors of training and test images for heads whose aggregator has no parameters; empty if memory is short."""
        to_pool, views = self._heads_to_pool, {0, *self.views}
        if not to_pool or not vectors_fit(to_pool, len(self.training.rows) * len(views) + len(self.test.rows), self.device):
            return {}
        n = len(self.training.rows) * len(self.views) + len(self.test.rows)
        training = pool(to_pool, self.training, self.views, self.device)
        test = pool(to_pool, self.test, (0,), self.device, keep_weights=True)
        self.say(f"features read once for {', '.join(to_pool)}: {n:,} vectors of each in memory")
        return {name: (training[name], test[name]) for name in to_pool}
