"""Stage two: heads trained from feature sets, without the encoder."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probe.checkpoint import Unfinished
from probe.convergence import converge
from probe.grid import Epoch, HeadPlan, Member
from probe.passes import HeadPasses, Loop, Outcome
from probe.ranks import ranks
from probe.recipe import Recipe
from probe.record import heads_in_place, request_of, stored_outcomes, write_record
from probe.result_files import REACHED, computed_by
from probe.results import folder_of_head, measures_of, measures_of_closed, write_correct, write_measures, write_trained
from probe.select import Selected, candidates, select
from probe.sources import Source, check_pair
from probe.timing import Together, time_head, write_timing
from store import BeyondClsError, FeatureStore, StoreError
from store.loading.placement import Placement
from store.places.disk import check_writable
from store.shown import Bars, no_bars
from store.writing.results import ResultFolder

Writers = Sequence[Callable[[Path], None]]


def probe(
    training: FeatureStore,
    test: FeatureStore,
    out: str | Path,
    heads: Mapping[str, HeadPlan] | HeadPlan | None = None,
    *,
    bars: Bars | None = None,
    joined: tuple[FeatureStore, FeatureStore] | None = None,
    loop: Loop | None = None,
    block: int | None = None,
    views: int | None = None,
    mix_evaluation_view: bool = False,
    subset: np.ndarray | Callable[[int, np.ndarray], np.ndarray] | None = None,
    held_out: float = 0.1,
    converged: bool | None = None,
    device: str | torch.device = "cpu",
    placement: Placement = "auto",
    progress: Callable[[int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    say: Callable[[str], None] | None = None,
    notes: Mapping[str, Any] | None = None,
    timed: bool = False,
    retrain: bool = False,
    stops: Callable[[], bool] | None = None,
) -> dict[str, dict[str, Any]]:
    """Train heads and write all results into `out`; returns what describes them (`result_files`), by head.

    Heads with the same recipe train in one pass over the features, all seeds in one order of the images (recipe.order
    "shared": seeds differ in where heads start) or each seed in its own pass ("own": as if it were the only one). Where a plan
    gives several learning rates or weight decays, up to three seeds are trained with each of them on a part of the training
    images, and the others select one (`probe.select`); then each seed is trained with it on all training images. Test images
    select nothing: every seed's last epoch counts.

    Writes `trained/seed<S>.safetensors` and `.json` (the probe), `trained/weights.npy` (mean over seeds of the aggregator's
    weights over the patches of the test images, [n_test, T] float32, if it has any), `trained/correct.npz` (with one label an
    image: `correct`, bool [n_seeds, n_test], which test images each seed is right about; and `converged`, the same for the
    converged classifiers), `curves.csv` (seed, epoch, loss, top1, …), `trained/record.json` (what it was trained from, to
    compare with later), `metrics.json` (means, for `dvc metrics`) and `description.json` (all else): into `out` for one plan,
    into `out/NAME` for a mapping. What an earlier run wrote there is replaced (not what comes while this one is at work: then
    its result stays next to it, and an error says where), except for heads that were trained from exactly this request, by
    training as it is now (`probe.record`): those stay, byte for byte. A run that was killed
    goes on from its last checkpoint (in `.unfinished` next to `out`) when it is started again. Protocols without gradient steps
    leave `curves.csv` empty, write no probe, and take view 0 of the training images.

    With a `loop`, the encoder stands before the heads: tokens of the training images are computed in each epoch, once for all
    heads, seeds and settings of a pass, on fresh crops as in the paper. Of `training` only ids, labels and classes are
    read then, and heads that are in place are trained again.

    Args:
        training, test: feature sets of one encoder.
        heads: plans by name; or one plan.
        bars: shows the progress, as `beyondcls.progress_bar` does; in place of `progress`.
        joined: a second pair of feature sets of the same images, for heads that read `joined/…`. Images that it lacks are left
            out for all heads (`n_training` and `n_test` count the others).
        loop: encoder and training images, e.g. a `beyondcls.EncoderLoop`.
        block: the block whose tokens are read; the deepest stored one by default.
        views: how many of the training images' stored views to use, counted from view 0; all by default. Where there are random
            crops (all but view 0) among them, each epoch shows one of the crops at random, and view 0 is only for evaluation;
            a single view is shown in every epoch, and nothing is augmented.
        mix_evaluation_view: show view 0 with the crops, as one of them.
        subset: rows of the training set to use (`probe.subsets`), of those that are valid and labelled; all by default. Or what
            draws them for each seed, given it and these rows: `lambda seed, rows: k_shot(training.labels, 5, seed, rows)`. The
            spread over seeds is one over draws then; recipe.order is to be "own".
        held_out: share of the training images to select on, stratified by class.
        converged: whether a converged classifier is fitted to the vectors of each trained head, with whose accuracy its own
            is recorded (`probe.convergence`); None: wherever that takes a minute or two at most.
        device: where heads train. Several GPUs or processes under torchrun.
        placement: of the features: "device", "memory", "stream", or "auto": the first that fits.
        progress: called with the number of epochs since the last call, summed over heads and seeds (`n_epochs`).
        on_epoch: called after each epoch of each seed and setting that trains, by the first of several processes. A run that
            goes on calls it first for the epochs of the one that was killed. Nothing that is written depends on it. Heads that
            stay as they are have no epochs, nor have protocols without gradient steps.
        say: called with messages for the user.
        notes: written into description.json too, e.g. the command.
        timed: measure the time of each head's forward pass on this machine, and write it into `timing.json`, with that of its
            training.
        retrain: also train heads that are in place.
        stops: whether to stop after the present epoch; called after each.

    Raises:
        Stopped: `stops` says so. Checkpoints stay, and the same request goes on.
        BeyondClsError: unknown aggregator or options, a grid that memory cannot hold, or a seed that diverged; or another
            result has come to its folder meanwhile.
        StoreError: feature sets that do not belong together or lack what a head reads, or `out` cannot be written.
    """
    if bars is not None and progress is not None:
        raise BeyondClsError("bars and progress were both given; bars shows what progress would be called with")
    out = Path(out)
    plans = _name_plans(heads, out)
    check_pair(training, test)
    if joined is not None:
        check_pair(*joined)
    stored = {"joined": joined is not None, "views": views, "mix_evaluation_view": mix_evaluation_view}
    if loop is not None and (given := [name for name, value in stored.items() if value]):
        what = f"{given[0]} is {stored[given[0]]}, which concerns stored features"
        raise BeyondClsError(f"{what}, but the encoder is in the loop; leave out one of the two")
    shown = shown_views(training, views, mix_evaluation_view) if loop is None else range(1)
    draw, fixed = (subset, None) if callable(subset) else (None, subset)
    others, rows = joined or (None, None), (fixed, None)
    read = training if loop is None else test  # whose deepest block may be another
    block = read.spec.deepest if block is None else block
    learn_from, judge_by = (Source(s, o, block, r, training) for s, o, r in zip((training, test), others, rows, strict=True))
    draws = {} if draw is None else _drawn_rows(draw, learn_from, plans)
    if draws:
        learn_from = learn_from.part(np.unique(np.concatenate(list(draws.values()))))
    check_writable(out)
    place, unfinished = torch.device(device), Unfinished.beside(out)
    about: dict[str, Any] = {"features": {"training": training.spec.key, "test": test.spec.key}, **(notes or {})}
    if joined is not None:
        about["joined"] = {"training": joined[0].spec.key, "test": joined[1].spec.key}
    encoder = training.attributes["encoder"]
    what, total = f"{encoder} {', '.join(plans)}", n_epochs(plans.values())
    with (
        ranks(place) as (rank, world_size),
        ((bars if rank == 0 else None) or no_bars)(what, total, "epochs") as shown_progress,
    ):
        common: dict[str, Any] = {"device": place, "placement": placement, "unfinished": unfinished, "draws": draws}
        common |= {"rank": rank, "world_size": world_size, "progress": progress or shown_progress}
        called = {"say": say, "on_epoch": on_epoch, "stops": stops}
        common |= {name: function for name, function in called.items() if function is not None}
        of_steps: dict[str, Any] = {"views": shown, "loop": loop}  # protocols without steps take the stored view 0
        # All are made first, so that errors are raised before anything trains.
        of_heads = {name: folder_of_head(out / name if isinstance(heads, Mapping) else out, encoder) for name in plans}
        results = _Results(of_heads, about, place, rank == 0, timed)
        groups = []
        for recipe, group in _group_by_recipe(plans):
            specs = {name: plan.head for name, plan in group.items()}
            options = common | of_steps if recipe else common
            groups.append((recipe, group, HeadPasses(specs, learn_from, judge_by, **options)))
        while groups:  # vectors that one of them has pooled are gone when the next begins
            recipe, group, passes = groups.pop(0)
            if recipe is None:
                for name, plan in group.items():
                    measures, correct = measures_of_closed(name, plan, passes)
                    results.write(name, passes, measures, [partial(write_correct, correct=correct)])
            else:
                _probe_trained(group, passes, recipe, results, held_out, converged, keep=not retrain and loop is None)
        if rank == 0:
            unfinished.remove()
    return {name: results.written[name] for name in plans}


@dataclass
class _Results:
    """The folders of heads, and what describes the results that have been written into them.

    Attributes:
        of_heads: by head, what takes the place of its earlier result.
        about: written into each: the feature sets, and notes.
        writes: whether this process, the first of several, writes files.
        timed: whether a forward pass of each head is measured.
    """

    of_heads: dict[str, ResultFolder]
    about: Mapping[str, Any]
    device: torch.device
    writes: bool
    timed: bool
    written: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(
        self, name: str, passes: HeadPasses, measures: dict[str, Any], writers: Writers, together: Together | None = None
    ) -> None:
        measures |= {**self.about, **computed_by(self.device)}
        self.written[name] = json.loads(json.dumps(measures))
        if self.writes:
            with self.of_heads[name].written() as folder:
                write_measures(folder, measures)
                for write_files in writers:
                    write_files(folder)
                if self.timed:
                    write_timing(folder, time_head(passes.template(name), passes.test, self.device), together)


def n_epochs(plans: Iterable[HeadPlan]) -> int:
    """Epochs of all members, including those that only serve the selection."""
    trained = [plan for plan in plans if plan.closed is None]
    n_members = [len(candidates({"head": plan})) + len(plan.seeds) for plan in trained]
    return sum(plan.recipe.epochs * n for plan, n in zip(trained, n_members, strict=True))


def _drawn_rows(
    draw: Callable[[int, np.ndarray], np.ndarray], source: Source, plans: Mapping[str, HeadPlan]
) -> dict[int, np.ndarray]:
    """Rows of the training set by seed, ascending: as many of each, for seeds that see images in their own order."""
    if shared := [name for name, plan in plans.items() if plan.closed is None and plan.recipe.order != "own"]:
        raise BeyondClsError(f"seeds draw their own images, but order of {shared[0]} is 'shared', expected 'own'")
    draws = {seed: np.unique(draw(seed, source.rows)) for seed in sorted({s for plan in plans.values() for s in plan.seeds})}
    if not all(len(rows) and np.isin(rows, source.rows).all() for rows in draws.values()):
        raise BeyondClsError("subset draws no rows, or such that are not among those it is given; draw some of these")
    if len(sizes := {len(rows) for rows in draws.values()}) > 1:
        raise BeyondClsError(f"seeds draw {' or '.join(map(str, sorted(sizes)))} images, expected as many each")
    return draws


def _name_plans(heads: Mapping[str, HeadPlan] | HeadPlan | None, out: Path) -> dict[str, HeadPlan]:
    if not isinstance(heads, Mapping):
        return {out.name: heads or HeadPlan()}
    if not heads:
        raise BeyondClsError("heads is empty, expected one plan or more by name")
    for name in heads:
        if not name or name != Path(name).name or name == "..":
            raise BeyondClsError(f"a head is named {name!r}, expected a name for a folder, without slashes")
    return dict(heads)


def shown_views(training: FeatureStore, views: int | None, mix_evaluation_view: bool) -> range:
    """Views that training shows, of the first `views`: crops alone where there are any, or all if those are to be mixed.

    Raises:
        StoreError: the set has fewer views.
    """
    stored = training.spec.n_views
    if views is not None and not 1 <= views <= stored:
        raise StoreError(f"views is {views}, expected 1 to {stored}, as many as {training.where} has; extract it with --views")
    n = stored if views is None else views
    return range(0 if n == 1 or mix_evaluation_view else 1, n)


def _group_by_recipe(plans: Mapping[str, HeadPlan]) -> list[tuple[Recipe | None, dict[str, HeadPlan]]]:
    """Heads that can train in one pass: the learning rate and weight decay may differ. Those without gradient steps come first.

    They have no recipe (None), are quick, and raise their errors before anything trains.
    """
    groups: dict[Recipe | None, dict[str, HeadPlan]] = defaultdict(dict)
    for name, plan in plans.items():
        recipe = replace(plan.recipe, base_lr=1.0, weight_decay=0.0) if plan.closed is None else None
        groups[recipe][name] = plan
    return sorted(groups.items(), key=lambda group: group[0] is not None)


def _probe_trained(
    plans: Mapping[str, HeadPlan],
    passes: HeadPasses,
    recipe: Recipe,
    results: _Results,
    held_out: float,
    converged: bool | None,
    keep: bool,
) -> None:
    """Select, train and judge heads of one recipe, and write their results; with `keep`, but for those that are in place."""
    folders, about, store = {name: results.of_heads[name].folder for name in plans}, results.about, passes.training.store
    kept = heads_in_place(plans, passes, held_out, folders, about) if keep else {}
    results.written |= {name: measures for name, (measures, _) in kept.items()}
    passes.kept_heads |= kept.keys()
    if kept:
        passes.progress(n_epochs(plans[name] for name in kept))
    began = time.perf_counter()
    chosen = select(plans, passes, recipe, held_out, {name: selected for name, (_, selected) in kept.items()})
    outcomes = _train(plans, passes, recipe, chosen)
    together = Together(time.perf_counter() - began, len(outcomes))
    for name, (measures, selected) in kept.items():
        if converged and not store.multilabel and REACHED not in measures:  # it was trained without
            outcomes[name] = stored_outcomes(name, plans[name], passes, folders[name], selected)
            results.of_heads[name] = folder_of_head(
                folders[name], store.attributes["encoder"]
            )  # whose description may have changed
    converge(passes, outcomes, converged)
    for name, of_seeds in outcomes.items():
        measures = measures_of(name, plans[name], passes, of_seeds, chosen[name])
        result: dict[str, Any] = {"plan": plans[name], "passes": passes, "outcomes": of_seeds, "chosen": chosen[name]}
        writers = [partial(write_trained, **result, about=about)]
        if passes.loop is None:
            request = request_of(plans[name], passes, held_out, about)
            writers.append(partial(write_record, request=request, chosen=chosen[name]))
        results.write(name, passes, measures, writers, None if name in kept else together)


def _train(
    plans: Mapping[str, HeadPlan], passes: HeadPasses, recipe: Recipe, chosen: Mapping[str, Selected]
) -> dict[str, list[Outcome]]:
    """Train each head's seeds with the chosen setting on all training images; all, or the mean would not be over all seeds."""
    members = [Member(n, chosen[n].base_lr, chosen[n].weight_decay, seed) for n, plan in plans.items() for seed in plan.seeds]
    by_member = {outcome.member: outcome for outcome in passes.train(members, recipe)}
    if missing := [member for member in members if member not in by_member and member.head not in passes.kept_heads]:
        raise BeyondClsError(f"{missing[0]} {passes.lost[missing[0]]}")
    return {name: [by_member[m] for m in members if m.head == name] for name in plans if name not in passes.kept_heads}
