"""Work of training heads: images times epochs, of what each head reads and how long it computes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.planning.machine import Machine
from pipelines.planning.runs import Run
from pipelines.planning.sizes import Sizes, n_learnt
from pipelines.planning.work import Work
from probe.grid import HeadSpec
from probe.rates import HeadRate
from probe.recipe import Recipe

HELD_OUT = 0.1  # share of the training images, as `probe.run.probe` has it
# head, shapes of what it reads, members, classes, whether an image may have several labels
Rate = Callable[[HeadSpec, Mapping[str, tuple[int, ...]], int, int, bool], HeadRate]


@dataclass
class LeftOut:
    """What is not counted.

    Attributes:
        absent: encoders that lack what a head reads, by name of the head.
        unknown: runs on lists that are not there, with their files.
    """

    absent: dict[str, set[str]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def trainings(
    runs: Iterable[Run], sizes: Mapping[str, Sizes], machine: Machine, rate: Rate, left_out: LeftOut
) -> Iterator[Work]:
    """Work of runs; what cannot be counted goes to `left_out`.

    Raises:
        BeyondClsError: unknown aggregator or options.
    """
    for run in runs:
        n_train = n_learnt(run.of_run, sizes[run.dataset])
        if n_train is None:
            left_out.unknown[run.name] = str(run.of_run["ids"])
            continue
        readable = {name: plan for name, plan in run.plans.items() if run.shapes(name) is not None}
        for name in run.plans.keys() - readable.keys():
            left_out.absent.setdefault(name, set()).add(run.encoder)
        if readable:
            yield training(replace(run, plans=readable), n_train, sizes[run.dataset], machine, rate)


def training(run: Run, n_train: int, sizes: Sizes, machine: Machine, rate: Rate) -> Work:
    """Work of one run, all of whose heads can be trained. Heads with the same recipe share a pass over the features."""
    tally, groups = _Tally(machine), dict[Recipe | None, list[str]]()
    for name, plan in run.plans.items():
        groups.setdefault(None if plan.closed is not None else plan.recipe, []).append(name)
    for recipe, names in groups.items():
        _Group(run, names, recipe, n_train, sizes, machine, rate).count(tally)
    seconds = {"reading": tally.reading, "heads": tally.heads}
    return Work(run.stage, run.name, run.encoder, run.dataset, tally.elapsed, seconds, read=tally.read, looped=tally.looped)


@dataclass
class _Tally:
    """What a run takes: seconds and bytes. `looped`: with the encoder in the loop."""

    machine: Machine
    reading: float = 0.0
    heads: float = 0.0
    elapsed: float = 0.0
    looped: float = 0.0
    read: float = 0.0

    def add(self, nbytes: float, heads: float) -> None:
        """Add bytes that are read while heads compute for some seconds."""
        reading = nbytes / self.machine.read_per_s
        self.reading, self.heads, self.read = self.reading + reading, self.heads + heads, self.read + nbytes
        self.elapsed += max(reading, heads)


@dataclass(frozen=True)
class _Group:
    """Heads of a run that share a recipe; None: protocols without gradient steps."""

    run: Run
    names: list[str]
    recipe: Recipe | None
    n_train: int
    sizes: Sizes
    machine: Machine
    rate: Rate

    def count(self, tally: _Tally) -> None:
        """Count the vectors that are pooled once, then the pass that compares settings, then the one that trains."""
        pooled, n_vectors = self._pooled(), self._n_vectors
        if pooled:
            seconds = n_vectors * sum(self._rate(name).pool_s for name in pooled)
            tally.add(n_vectors * self.run.nbytes(pooled), seconds)
        if self.recipe is None:
            tally.looped += n_vectors / self._crops_per_s + n_vectors * sum(self._rate(name).pool_s for name in self.names)
            return
        plans = self.run.plans
        grids = {name: len(plans[name].settings) for name in self.names if len(plans[name].settings) > 1}
        if grids:
            n_held_out = max(1, round(self.n_train * (self.run.of_run.get("held_out") or HELD_OUT)))
            self._count_pass(tally, grids, pooled, (self.n_train - n_held_out, n_held_out), 1)
        self._count_pass(tally, dict.fromkeys(self.names, 1), pooled, (self.n_train, self.sizes.test), self.recipe.epochs)

    def _count_pass(
        self, tally: _Tally, n_settings: Mapping[str, int], pooled: list[str], n_images: tuple[int, int], n_judged: int
    ) -> None:
        """Count one pass, or one for each seed where each has its own order.

        Args:
            n_settings: of each head that trains in it.
            pooled: heads whose vectors are in memory.
            n_images: to learn from, and to judge by.
            n_judged: epochs after which heads are judged.
        """
        assert self.recipe is not None
        (n_learn, n_judge), n_orders = n_images, self._n_orders
        shown, judged = self.recipe.epochs * n_learn * n_orders, n_judged * n_judge * n_orders
        steps, pools = {}, {}
        for name, settings in n_settings.items():
            rate = self._rate(name, settings)
            steps[name] = shown * rate.learn_s + judged * rate.judge_s
            pools[name] = (shown + judged) * rate.pool_s
        by_tokens = [name for name in n_settings if name not in pooled]
        if by_tokens:
            one_image = self.run.nbytes(by_tokens)
            read = self._n_read(one_image, n_learn, self._n_shown, shown) + self._n_read(one_image, n_judge, 1, judged)
            tally.add(read * one_image, sum(steps[name] + pools[name] for name in by_tokens))
        tally.add(0, sum(steps[name] for name in n_settings if name in pooled))
        tally.looped += (shown + judged) / self._crops_per_s + sum(steps.values()) + sum(pools.values())

    def _n_read(self, nbytes: int, n: int, n_shown: int, n_visits: int) -> int:
        """Views of images that are read: each once where all fit into memory, or at each visit."""
        fits = nbytes * n * n_shown <= self.machine.features_nbytes
        return min(n * n_shown * self._n_orders, n_visits) if fits else n_visits

    def _pooled(self) -> list[str]:
        """Heads whose vectors are pooled once and then kept in memory."""
        rates = {name: self._rate(name) for name in self.names}
        pooled = [name for name in self.names if rates[name].is_pooled]
        nbytes = 4 * self._n_vectors * sum(rates[name].width for name in pooled)
        return pooled if self.recipe is None or nbytes <= self.machine.vectors_nbytes else []

    def _rate(self, name: str, n_settings: int = 1) -> HeadRate:
        """Of the members that train side by side."""
        plan, shapes = self.run.plans[name], self.run.shapes(name)
        assert shapes is not None
        n_seeds = len(plan.seeds) if self._n_orders == 1 else 1
        return self.rate(plan.head, shapes, n_settings * n_seeds, self.sizes.n_classes, self.sizes.multilabel)

    @property
    def _n_vectors(self) -> int:
        return self.n_train * self._n_shown + self.sizes.test

    @property
    def _n_orders(self) -> int:
        """Passes: one for each seed where each has its own order."""
        is_own = self.recipe is not None and self.recipe.order == "own"
        return max(len(self.run.plans[name].seeds) for name in self.names) if is_own else 1

    @property
    def _n_shown(self) -> int:
        """Views of a training image that heads learn from: where there are random crops, not the evaluation crop."""
        of_run: Mapping[str, Any] = self.run.of_run
        views = min(self.run.n_views, of_run.get("views") or self.run.n_views)
        return 1 if self.recipe is None else views - (views > 1 and not of_run.get("mix_evaluation_view"))

    @property
    def _crops_per_s(self) -> float:
        """Through the encoder, and through the second one for heads that read its attention; images are decoded meanwhile."""
        rates = [measured.rates for measured in self.run.encoders(self.names)]
        return 1 / sum(1 / min(one.decoded_per_s, one.encoded_per_s) for one in rates)
