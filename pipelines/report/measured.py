"""What the stages measured, as frozen values: a head with its numbers over seeds, an encoder's attention; and their order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from probe.recipe import CHOSEN
from probe.result_files import REACHED
from store.format.pretraining import UNKNOWN, Pretraining

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


@dataclass(frozen=True)
class Curve:
    """Training by epoch, each entry the mean over seeds: loss in nats, top-1 in percent."""

    epochs: tuple[int, ...]
    loss: tuple[float, ...]
    top1: tuple[float, ...]


@dataclass(frozen=True)
class BestEpoch:
    """What a head reached on the test images in the epoch in which it was best on them; never its result.

    Attributes:
        measure: over seeds, each in the epoch in which that seed was best; percent.
        epochs: of each seed, counted from 1; the first of equally good ones.
    """

    measure: Measure
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class Probe:
    """One PROBES/ENCODER/HEAD: its result, its curves, and the file of its weights [N, T] (None without weights)."""

    encoder: str
    head: str
    recorded_encoder: str
    options: Mapping[str, Any]
    measures: Mapping[str, Measure]  # top1 and top5, or map (of several labels), in percent, as train_…; entropy in nats
    n_training: int
    n_test: int
    n_tokens: int | None
    n_classes: int
    seeds: tuple[int, ...]
    recipe: Mapping[str, Any]
    features: Mapping[str, str]  # keys of the feature sets: training, test
    selected: str  # what was selected, by what, on what
    command: str  # that reproduces these numbers; empty if it was not recorded
    curve: Curve | None
    weights: Path | None
    aggregator: str = ""
    crops: int | str | None = None  # random ones of each training image that were shown, or "fresh"; None if none were
    correct: Path | None = None  # correct.npz: which test images each seed classifies correctly, bool [n_seeds, n_test]
    member: str = "correct"  # of correct.npz
    test_images: str | None = None  # digest of the ids of these images; None if it was not recorded
    cost: Mapping[str, int | None] = field(default_factory=dict)  # as `probe.cost.Cost` names it
    timing: Mapping[str, Any] = field(default_factory=dict)  # as `probe.timing.Timing` names it; empty if nothing was measured
    notes: tuple[str, ...] = ()  # sentences that a reader of the numbers should know
    transferred: str | None = None  # key of the training features of the probe whose aggregators these are, if of another
    pretraining: Pretraining = UNKNOWN  # of the encoder
    recorded: Mapping[str, Any] = field(default_factory=dict)  # the result as it was written
    best_epoch: BestEpoch | None = None  # None where nothing was measured epoch by epoch
    folder: Path | None = None  # of metrics.json

    @property
    def measure(self) -> str:
        """What counts: "top1", or "map" where images have several labels."""
        return "map" if "map" in self.measures else "top1"

    @property
    def score(self) -> Measure:
        """What counts, percent."""
        return self.measures[self.measure]

    @property
    def protocol(self) -> dict[str, Any]:
        """The recipe; without the learning rate and weight decay where each head has those that were selected for it."""
        selected = self.recorded.get("selected", {}).get("by") is not None
        return {name: value for name, value in self.recipe.items() if not (selected and name in CHOSEN)}

    @property
    def trained_as(self) -> str:
        """`protocol` and seeds, as text that is equal where two heads were trained alike."""
        return repr((sorted(self.protocol.items(), key=str), self.seeds))


@dataclass(frozen=True)
class Attention:
    """One ATTENTION/ENCODER: statistics per block as (mean, std over images), and where its other files are.

    Attributes:
        cls_map: [cls] maps [N, T]; None without [cls] maps.
        heads: the table of statistics per block and attention head; None if it was not written.
        medians: of unbounded statistics, per block (median, lower, upper quartile over images), shown in place of the means.
        declared: titles and units of the statistics.
        pretraining: of the encoder.
    """

    encoder: str
    key: str
    data: str
    n_images: int
    n_tokens: int | None
    architecture: Mapping[str, Any]
    statistics: Mapping[str, tuple[tuple[float, float], ...]]
    cls_map: Path | None
    heads: Path | None = None
    crops: Path | None = None  # [N, 4] of what its maps show
    medians: Mapping[str, tuple[tuple[float, float, float], ...]] = field(default_factory=dict)
    declared: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    pretraining: Pretraining = UNKNOWN


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


def converged(probes: Mapping[tuple[str, str], Probe]) -> dict[tuple[str, str], Probe]:
    """The same aggregators with a converged classifier in place of the trained one, where one was fitted."""
    return {
        key: replace(probe, measures={**probe.measures, "top1": probe.measures[REACHED]}, member="converged")
        for key, probe in probes.items()
        if REACHED in probe.measures
    }


def untrained(probes: Mapping[tuple[str, str], Probe]) -> set[str]:
    """Encoders of these probes that have random weights."""
    return {encoder for (encoder, _), probe in probes.items() if probe.pretraining.is_untrained}


def trained_first(probes: Mapping[tuple[str, str], Probe]) -> list[str]:
    """Encoders of these probes in the order of the page."""
    last = untrained(probes)
    return sorted({encoder for encoder, _ in probes}, key=lambda name: (name in last, name))
