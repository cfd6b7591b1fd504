"""Aggregators of one data set on another: they stay as they were trained, only a new classifier is trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash

from probe.aggregators import Aggregator, Features, Pooled
from probe.grid import HeadPlan, HeadSpec, Member
from probe.head import FinalNorm, Head
from probe.passes import HeadPasses
from probe.recipe import Recipe
from probe.result_files import computed_by
from probe.results import folder_of_head, measures_of, write_measures, write_trained
from probe.saved import load_with
from probe.select import Selected
from probe.sources import Source, check_pair, check_trained_on
from store import BeyondClsError, FeatureStore
from store.places.disk import check_writable


class Frozen(Aggregator):
    """A trained aggregator without parameters to train: each image's vector is pooled once."""

    def __init__(self, trained: Aggregator):
        super().__init__(trained.dim, trained.width)
        self.reads = trained.reads
        self.trained = [trained.eval()]  # in a list, because parameters of a submodule would be trained

    def use_vectors(self, has: Callable[[str], bool]) -> None:
        self.trained[0].use_vectors(has)
        self.reads = self.trained[0].reads

    def forward(self, features: Features) -> Pooled:
        device = next(iter(features.values())).device
        with torch.no_grad():
            return self.trained[0].to(device)(features)


@dataclass(frozen=True)
class FrozenSpec(HeadSpec):
    """A head with a trained aggregator, and a classifier that the seed initialises."""

    trained: Aggregator | None = None

    def build(
        self, dim: int, n_patches: int | None, n_classes: int, final_norm: FinalNorm | None = None, seed: int = 0
    ) -> Head:
        head = super().build(dim, n_patches, n_classes, final_norm, seed)
        assert self.trained is not None
        head.aggregator = Frozen(self.trained)
        return head


def transfer(
    probe: Path,
    training: FeatureStore,
    test: FeatureStore,
    out: Path,
    *,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = lambda message: None,
    notes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a classifier on what the aggregators of a probe pool from other images; returns what describes it.

    Each seed of the probe provides its aggregator and seeds the new classifier, which is trained by the probe's recipe.
    Compared with the same head trained on these images, and with the plain average, it shows whether the weights are useful
    for any classes, or only for those they were learned with. Writes the files of `probe.run.probe`, with heads that
    `load_probe` loads, and into description.json "transferred": the key of the features that the aggregators were trained on,
    and a digest of each.

    Args:
        probe: PROBES/HEAD, a folder with trained/seed<S>.json.
        training, test: feature sets of the probe's encoder, with any classes.
        out: folder for the files; what an earlier run wrote there is replaced.

    Raises:
        BeyondClsError: no probe, or one whose aggregator is custom or has no parameters, or a probe of another encoder.
        StoreError: feature sets that do not belong together or lack what the head reads, or `out` cannot be written.
    """
    heads, result = _load_heads(probe), folder_of_head(out, training.attributes["encoder"])
    described = next(iter(heads.values()))[1]
    check_pair(training, test)
    check_writable(out)
    check_trained_on(probe, described, training, ("encoder_weights",))
    plain = HeadSpec(**{name: described[name] for name in HeadSpec().to_dict() if name in described})
    specs = {f"seed{s}": FrozenSpec(**vars(plain), trained=head.aggregator) for s, (head, _) in heads.items()}
    recipe = Recipe(**described["recipe"])
    learn_from, judge_by = (Source(store, block=described["block"], classes_of=training) for store in (training, test))
    shown = range(1, training.spec.n_views) or (0,)  # crops, where there are any
    passes = HeadPasses(specs, learn_from, judge_by, shown, torch.device(device), say=say)
    members = [Member(f"seed{s}", recipe.base_lr, recipe.weight_decay, s) for s in heads]
    outcomes = sorted(passes.train(members, replace(recipe, base_lr=1.0, weight_decay=0.0)), key=lambda o: o.member.seed)
    if passes.lost:
        member, reason = next(iter(passes.lost.items()))
        raise BeyondClsError(f"{member} {reason}")
    plan, chosen = HeadPlan(plain, recipe, tuple(heads)), Selected(recipe.base_lr, recipe.weight_decay)
    digests = [_aggregator_digest(head.aggregator) for head, _ in heads.values()]
    about: dict[str, Any] = {"features": {"training": training.spec.key, "test": test.spec.key}}
    about["transferred"] = {"training": described["features"]["training"], "aggregators": digests}
    measures = measures_of(members[0].head, plan, passes, outcomes, chosen)
    measures |= {**about, **(notes or {}), **computed_by(torch.device(device))}
    for outcome in outcomes:  # saved as a probe, with the trained aggregator back in place
        outcome.head.aggregator = heads[outcome.member.seed][0].aggregator.cpu()
    with result.written() as folder:
        write_measures(folder, measures)
        write_trained(folder, plan, passes, outcomes, chosen, about)
    return measures


def _load_heads(probe: Path) -> dict[int, tuple[Head, dict[str, Any]]]:
    """Heads and their descriptions by seed."""
    files = sorted(probe.glob("trained/seed*.json"))
    if not files:
        raise BeyondClsError(f"there is no {probe}/trained/seed0.json, expected what `beyondcls probe --out {probe}` writes")
    heads = {described["seed"]: (head, described) for head, described in map(load_with, files)}
    if not all(head.aggregator.trainable for head, _ in heads.values()):
        raise BeyondClsError(f"aggregator of {probe} has no parameters, so there is nothing to transfer; train that head there")
    return dict(sorted(heads.items()))


def _aggregator_digest(aggregator: Aggregator) -> str:
    """xxh3_128 of names, shapes and values of the parameters."""
    hashed = xxhash.xxh3_128()
    for name, value in sorted(aggregator.state_dict().items()):
        hashed.update(f"{name} {tuple(value.shape)}\n".encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()
