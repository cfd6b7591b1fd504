"""How long heads train: images shown, times the seconds that a head takes for one on this machine, or a disk to read one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipelines.parameters.groups import plans_of_study, studies_of
from pipelines.parameters.heads import GROUPS, plans_and_run
from pipelines.parameters.layers import common_layers
from pipelines.parameters.params import section
from pipelines.planning.encoders import EncoderCost, options_of
from pipelines.planning.sizes import Sizes, n_learnt
from probe.aggregators import make_aggregator
from probe.grid import HeadPlan
from probe.timing import HeadRate, measure_head
from store.format.layout import ArrayName
from store.loading.placement import MEMORY_SHARE, free_memory

JOINED = "joined/"
HELD_OUT = 0.1  # share of the training images, as `probe.run.probe` has it


@dataclass(frozen=True)
class ProbeRun:
    """One run of `beyondcls probe`: a head of a group, or a study, on the features of an encoder.

    Attributes:
        name: of the head or the study.
        joined: the encoder whose features are read as `joined/…`, if there is one.
        plans: of its heads, by name.
        of_run: parameters of the whole run.
        n_views: stored views of the training images.
    """

    name: str
    encoder: str
    dataset: str
    measured: EncoderCost
    joined: EncoderCost | None
    plans: Mapping[str, HeadPlan]
    of_run: Mapping[str, Any]
    n_views: int

    def reads(self, plan: HeadPlan) -> tuple[dict[str, tuple[int, ...]], int] | None:
        """Shape of one image of each kind that a head reads, and bytes of all; None if the encoder lacks one.

        Raises:
            BeyondClsError: unknown aggregator or options, or values that do not suit the encoder's width.
        """
        patch = self._array("patch")
        dim = (patch or self._array("cls") or ((1,), 0))[0][-1]
        with torch.device("meta"):  # takes no memory
            made = make_aggregator(plan.head.aggregator, dim, patch and patch[0][0], **plan.head.options)
        arrays = {kind: self._array(kind) for kind in made.reads}
        there = {kind: array for kind, array in arrays.items() if array is not None}
        shapes = {kind: shape for kind, (shape, _) in there.items()}
        return (shapes, sum(nbytes for _, nbytes in there.values())) if len(there) == len(arrays) else None

    def _array(self, kind: str) -> tuple[tuple[int, ...], int] | None:
        """Shape and bytes of one image, view 0. A kind without a block means the one that is probed."""
        measured, block = (self.joined, None) if kind.startswith(JOINED) else (self.measured, self.of_run.get("block"))
        assert measured is not None
        if block is None or block < 0:
            block = max(b for array in measured.nbytes if (b := ArrayName.parse(array).block) is not None)
        name = ArrayName.parse(kind.removeprefix(JOINED))
        array = str(replace(name, block=block if name.block is None else name.block, view=0))
        return (measured.shapes[array], measured.nbytes[array]) if array in measured.nbytes else None


def runs(
    params: Mapping[str, Any], given: Mapping[str, Any], encoders: Mapping[str, EncoderCost], datasets: Mapping[str, Sizes]
) -> Iterator[ProbeRun]:
    """All runs of heads and studies.

    Raises:
        BeyondClsError: unknown names, invalid values, or values that exclude each other.
    """

    def run(name: str, key: str, encoder: str, dataset: str, joined: str | None, plans: Any) -> ProbeRun:
        n_views = options_of(params, given, encoder, dataset, "train").get("views") or 1
        heads, of_run = plans
        return ProbeRun(name, encoder, dataset, encoders[key], encoders[joined] if joined else None, heads, of_run, n_views)

    for encoder in section(params, "encoders"):
        for dataset in datasets:
            for head in (head for group in GROUPS for head in section(params, group)):
                plans = plans_and_run([head], params, {}, {}, common_layers(params, encoder, dataset))
                yield run(head, encoder, encoder, dataset, None, plans)
    for study, (place, entry) in studies_of(params).items():
        encoder, dataset, joined = entry["encoder"], entry["dataset"], entry.get("joined")
        key = study if place == "block_studies" else encoder
        yield run(study, key, encoder, dataset, joined, plans_of_study(params, study, encoder=encoder, dataset=dataset))


class Trainings:
    """Seconds of runs on a device; heads alike are measured once.

    Attributes:
        left_out: why heads are not counted, by name.
    """

    def __init__(self, device: torch.device):
        self.device, self.left_out, self._known = device, dict[str, str](), dict[str, HeadRate]()
        self._memory = MEMORY_SHARE * max(free_memory(torch.device("cpu")), free_memory(device))

    def seconds(self, run: ProbeRun, sizes: Sizes) -> float:
        """Of a run: heads compute one after the other while features are read, which those that fit into memory are once."""
        n_train = n_learnt(run.of_run, sizes)
        if n_train is None:
            self.left_out[run.name] = f"{run.of_run['ids']} is not here"
            return 0.0
        computing = reading = 0.0
        views = min(run.n_views, run.of_run.get("views") or run.n_views)  # random crops alone, where there are any
        n_vectors = n_train * max(1, views - (not run.of_run.get("mix_evaluation_view"))) + sizes.test
        for name, plan in run.plans.items():
            if (read := run.reads(plan)) is None:
                self.left_out[name] = f"{run.encoder} lacks what it reads"
                continue
            (shapes, nbytes), epochs = read, plan.recipe.epochs
            n_orders = len(plan.seeds) if plan.recipe.order == "own" else 1
            n_seeds = len(plan.seeds) // n_orders  # that train side by side
            n_held_out = max(1, round(n_train * (run.of_run.get("held_out") or HELD_OUT)))
            # Images to learn from and to judge by in all epochs, and members; in a grid, settings are compared first.
            passes = [(epochs * n_train, epochs * sizes.test, n_seeds)]
            if len(plan.settings) > 1:
                passes.append((epochs * (n_train - n_held_out), n_held_out, n_seeds * len(plan.settings)))
            n_visits = 0
            for n_learn, n_judge, n_members in passes if plan.closed is None else ():
                rate = self._rate(plan, shapes, n_members, sizes)
                computing += n_orders * (n_learn * rate.learn_s + n_judge * rate.judge_s)
                n_visits += n_orders * (n_learn + n_judge)
            rate = self._rate(plan, shapes, n_seeds, sizes)
            computing += n_vectors * rate.pool_s  # where the vector of an image never changes: once
            is_read_once = rate.is_pooled or nbytes * n_vectors <= self._memory
            reading = max(reading, nbytes * (n_vectors if is_read_once else n_visits) / run.measured.rates.read_per_s)
        return max(computing, reading)

    def _rate(self, plan: HeadPlan, shapes: Mapping[str, tuple[int, ...]], n_members: int, sizes: Sizes) -> HeadRate:
        key = f"{plan.head.to_dict()} {sorted(shapes.items())} {n_members} {sizes.n_classes} {sizes.multilabel}"
        if key not in self._known:
            self._known[key] = measure_head(plan.head, shapes, n_members, sizes.n_classes, sizes.multilabel, self.device)
        return self._known[key]
