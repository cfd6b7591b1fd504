"""What the stages measured, as values: a head with its numbers over seeds, an encoder's attention; and their order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from probe.recipe import CHOSEN
from probe.result_files import REACHED
from store.format.pretraining import UNKNOWN

FIRST_HEADS = ("cls", "average", "abmilp")  # the others follow, as `by_accuracy` has them where their probes are at hand


@dataclass(frozen=True)
class Measure:
    """One number over seeds; `std` has n - 1 in the denominator and is 0 for one seed.

    Attributes:
        without: the mean without each group of test images in turn (`probe.subsets`); empty if that was not measured.
    """

    mean: float
    std: float
    values: tuple[float, ...]
    without: tuple[float, ...] = ()


class Entries(dict[str, Any]):
    """What a file says, its entries as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Probe(Entries):
    """One PROBES/ENCODER/HEAD: the entries of its result, with these in their place or in addition.

    Attributes:
        encoder, head: the names of its folders; the result calls its encoder `recorded_encoder`.
        measures: top1 and top5, or map (of several labels), in percent, as train_…; entropy in nats.
        recipe: or the protocol without gradient steps.
        selected: what was selected, by what, on what, in words.
        command: that reproduces these numbers; empty if it was not recorded.
        crops: random ones of each training image that were shown, or "fresh"; None if none were.
        curve: means over seeds by epoch: epochs, loss in nats, top1 in percent; None without.
        best_epoch: what was reached on the test images in the epoch in which each seed was best on them, and `epochs` of the
            seeds, from 1, the first of equally good ones; never its result. None where nothing was measured epoch by epoch.
        weights: the file of its weights [N, T]; None without.
        correct: which test images each seed classifies correctly, bool [n_seeds, n_test], `member` of this file; None without.
        test_images: digest of the ids of these images; None if it was not recorded.
        timing: as `probe.timing.Timing` names it; empty if nothing was measured. `cost`: as `probe.cost.Cost` names it.
        transferred: key of the training features of the probe whose aggregators these are, if of another.
        recorded: the result as it was written.
        folder: of metrics.json; None of what has none.
    """

    def __init__(self, *entries: Any, **more: Any):
        given = dict(*entries, **more)
        nothing = dict.fromkeys(("curve", "best_epoch", "weights", "correct", "test_images", "transferred", "crops", "folder"))
        empty = {"aggregator": "", "command": "", "member": "correct", "cost": {}, "timing": {}, "notes": (), "recorded": {}}
        super().__init__({**nothing, **empty, "pretraining": UNKNOWN, **given})

    @property
    def measure(self) -> str:
        """What counts: "top1", or "map" where images have several labels."""
        return "map" if "map" in self.measures else "top1"

    @property
    def score(self) -> Measure:
        """What counts, percent."""
        score: Measure = self.measures[self.measure]
        return score

    @property
    def protocol(self) -> dict[str, Any]:
        """The recipe; without the learning rate and weight decay where each head has those that were selected for it."""
        selected = self.recorded.get("selected", {}).get("by") is not None
        return {name: value for name, value in self.recipe.items() if not (selected and name in CHOSEN)}

    @property
    def trained_as(self) -> str:
        """`protocol` and seeds, as text that is equal where two heads were trained alike."""
        return repr((sorted(self.protocol.items(), key=str), tuple(self.seeds)))


class AttentionResult(Entries):
    """One ATTENTION/ENCODER: the entries of summary.json, with these in their place or in addition.

    Attributes:
        encoder: the name of its folder.
        statistics: (mean, std) over images by block.
        medians: of unbounded statistics, per block (median, lower, upper quartile over images), shown in place of the means.
        declared: titles and units of the statistics.
        heads: the table of statistics per block and attention head; None if it was not written.
        cls_map: [cls] maps [N, T]; None without. `crops`: [N, 4] of what its maps show.
    """

    def __init__(self, *entries: Any, **more: Any):
        nothing = dict.fromkeys(("heads", "crops", "cls_map"))
        super().__init__({**nothing, "medians": {}, "declared": {}, "pretraining": UNKNOWN, **dict(*entries, **more)})


def in_order(heads: Iterable[str]) -> list[str]:
    """Each head once, those of FIRST_HEADS first, others by name."""
    names = set(heads)
    return [head for head in FIRST_HEADS if head in names] + sorted(names - set(FIRST_HEADS))


def by_accuracy(probes: Iterable[Probe]) -> list[str]:
    """Each head once, in the order of the page: those of FIRST_HEADS first, others from the most accurate on.

    That is by the mean over trained encoders and data sets, or over untrained ones if a head has no others.
    """
    scores: dict[str, tuple[list[float], list[float]]] = {}
    for probe in probes:
        scores.setdefault(probe.head, ([], []))[probe.pretraining.is_untrained].append(probe.score.mean)
    means = {head: fmean(of_trained or of_untrained) for head, (of_trained, of_untrained) in scores.items()}
    others = sorted(set(means) - set(FIRST_HEADS), key=lambda head: (-means[head], head))
    return [head for head in FIRST_HEADS if head in means] + others


def with_converged(probes: Mapping[tuple[str, str], Probe]) -> dict[tuple[str, str], Probe]:
    """The same aggregators with a converged classifier in place of the trained one, where one was fitted."""
    return {
        key: Probe(probe, measures={**probe.measures, "top1": probe.measures[REACHED]}, member="converged")
        for key, probe in probes.items()
        if REACHED in probe.measures
    }


def untrained_encoders(probes: Mapping[tuple[str, str], Probe]) -> set[str]:
    """Encoders of these probes that have random weights."""
    return {encoder for (encoder, _), probe in probes.items() if probe.pretraining.is_untrained}


def trained_first(probes: Mapping[tuple[str, str], Probe]) -> list[str]:
    """Encoders of these probes in the order of the page."""
    last = untrained_encoders(probes)
    return sorted({encoder for encoder, _ in probes}, key=lambda name: (name in last, name))
