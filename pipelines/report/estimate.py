"""A number with its uncertainty: over test images and over seeds together."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtr, stdtrit

from pipelines.report.measured import Measure, Probe
from probe.result_files import array_of
from store import BeyondClsError

LEVEL = 0.95
Probes = Mapping[tuple[str, str], Probe]  # by encoder and head


class Variation(NamedTuple):
    """What a number would be another with: other test images, other seeds of a head, other draws of an encoder's weights, or
    other encoders of a family. Numbers with one source are paired by its units, those with two vary independently.
    """

    kind: Literal["images", "seeds", "draws", "encoders"]
    name: str


@dataclass(frozen=True, eq=False)
class Estimate:
    """A mean over test images and seeds, percent or points.

    Attributes:
        std: over seeds (n - 1 in the denominator); 0 for one.
        n_seeds: 0 of what draws nothing, such as an attention map: it is the same for all seeds of what it is compared with.
        effects: what each unit of a source contributes: an image the share of seeds that are right about it, a seed its
            accuracy. The number varies by their standard error. Without images where it is unknown which of them were
            classified correctly; without seeds where there was one.
        in_both: the part of the variance that is in the errors over images and over seeds alike: what seeds disagree about
            on single images.
    """

    mean: float
    std: float
    n_seeds: int
    effects: Mapping[Variation, Float[np.ndarray, "n"]] = field(default_factory=dict)
    in_both: float = 0.0

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference; its spread over seeds is the root of the summed variances."""
        return self._combine(other, self.mean - other.mean, 1, -1)

    def share_of(self, other: "Estimate") -> "Estimate | None":
        """Of two accuracies: the share of the errors of `other` that this one avoids, percent; None if `other` makes none.

        (a - b) / (100 - b), with the spread of its linear expansion.
        """
        if other.mean >= 100:
            return None
        left = 100 - other.mean
        mean = 100 * (self.mean - other.mean) / left
        return self._combine(other, mean, 100 / left, -100 * (100 - self.mean) / left**2)

    def log_odds_above(self, other: "Estimate") -> "Estimate | None":
        """Of two accuracies: ln(a / (100 - a)) - ln(b / (100 - b)); None if one of them is 0 or 100."""
        if not (0 < self.mean < 100 and 0 < other.mean < 100):
            return None
        (a, slope), (b, other_slope) = ((math.log(x / (100 - x)), 100 / (x * (100 - x))) for x in (self.mean, other.mean))
        return self._combine(other, a - b, slope, -other_slope)

    def _combine(self, other: "Estimate", mean: float, slope: float, other_slope: float) -> "Estimate":
        """A function of both, by its slopes in them; it varies with what both are known to vary with."""
        n = min(filter(None, (self.n_seeds, other.n_seeds)), default=0)
        std = math.hypot(slope * self.std, other_slope * other.std) if n > 1 else 0.0
        effects: dict[Variation, np.ndarray] = {}
        for estimate, factor in ((self, slope), (other, other_slope)):
            for source, units in estimate.effects.items():
                if (self.knows_images and other.knows_images) if source.kind == "images" else n > 1:
                    effects[source] = effects.get(source, 0) + factor * units
        return Estimate(mean, std, n, effects, slope**2 * self.in_both + other_slope**2 * other.in_both)

    @property
    def knows_images(self) -> bool:
        return any(source.kind == "images" for source in self.effects)

    @property
    def error(self) -> tuple[float, float] | None:
        """The standard error over all sources, and its degrees of freedom; None if it is unknown how images contribute.

        The variance of a mean in a two-way layout with random rows and columns: the sum over sources, less what is in both of
        images and seeds, and at least the part of images; degrees of freedom are Satterthwaite's.

        Source: Satterthwaite 1946, An approximate distribution of estimates of variance components.
        """
        if not self.knows_images:
            return None
        of_images, of_others = (
            [v for kind, v in self._variances() if (kind == "images") == is_images] for is_images in (True, False)
        )
        variance, others = (sum(v for v, _ in parts) for parts in (of_images, of_others))
        parts = of_images
        if others > self.in_both:
            variance, parts = variance + others - self.in_both, of_images + of_others
        weighed = sum(v**2 / degrees for v, degrees in parts)
        if weighed == 0:
            return 0.0, math.inf
        # Of a sum they are at least the fewest; where most of it is subtracted again the formula gives less than that.
        return math.sqrt(variance), max(variance**2 / weighed, min(degrees for v, degrees in parts if v > 0))

    def _variances(self) -> Iterator[tuple[str, tuple[float, int]]]:
        """Of the mean over the units of each source, with its degrees of freedom, by the source's kind."""
        for source, units in self.effects.items():
            if len(units) > 1:
                yield source.kind, (float(units.var(ddof=1)) / len(units), len(units) - 1)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % over test images and, if there were several, over seeds; None if the part of images is unknown."""
        if self.error is None:
            return None
        error, degrees = self.error
        reach = error * float(stdtrit(min(degrees, 1e6), (1 + LEVEL) / 2))
        return self.mean - reach, self.mean + reach

    @property
    def sign(self) -> int | None:
        """1 or -1 where zero is outside of the interval, else 0; None with one seed, or without an interval."""
        if self.n_seeds == 1 or self.interval is None:
            return None
        low, high = self.interval
        return 1 if low > 0 else -1 if high < 0 else 0

    @property
    def p(self) -> float | None:
        """Of the two-sided test that the mean is 0; None where there is no `sign`."""
        if self.sign is None or self.error is None:
            return None
        error, degrees = self.error
        return float(2 * stdtr(min(degrees, 1e6), -abs(self.mean) / error)) if error else float(self.mean == 0)

    @property
    def measure(self) -> Measure:
        """The estimate without its interval; the single values of a difference are unknown (NaN)."""
        return Measure(self.mean, self.std, (math.nan,) * self.n_seeds)

    def bounds(self, digits: int = 1) -> str:
        """`3.8 to 5.0`; a dash if the interval is unknown."""
        if self.interval is None:
            return "–"
        return " to ".join(f"{value + 0.0:.{digits}f}".replace("-", "−") for value in (round(v, digits) for v in self.interval))


def difference(one: "Probe | Estimate | None", other: "Probe | Estimate | None") -> Estimate | None:
    """`one` − `other`, of probes in what counts of them; None where either is missing."""
    if one is None or other is None:
        return None
    first, second = (estimate_of(each) if isinstance(each, Probe) else each for each in (one, other))
    return first.minus(second)


def estimate_of(probe: Probe) -> Estimate:
    """What counts of a probe, percent. Several draws of an encoder's weights are the units, each with the mean of its seeds.

    By image where probes record which images they classify correctly.

    Raises:
        BeyondClsError: that record does not fit their metrics.
    """
    measure, draws = probe.measures[probe.measure], int(probe.recorded.get("draws", 1))
    images, in_both = f"{probe.test_images} ({probe.n_test})", 0.0
    estimate = of_measure(measure, images, f"{probe.folder or (probe.encoder, probe.head)} {probe.member}")
    effects = dict(estimate.effects)
    if draws > 1:
        effects = {source: units for source, units in effects.items() if source.kind != "seeds"}
        effects[Variation("draws", f"{probe.encoder} ({draws})")] = np.array(measure.values).reshape(draws, -1).mean(1)
    if probe.correct is not None and probe.test_images is not None and probe.measure == "top1":
        correct = _read_correct(probe.correct, probe.member, probe.correct.stat().st_mtime_ns)
        _check_correct(probe, correct)
        effects[Variation("images", images)], in_both = _by_image(correct, draws)
    return replace(estimate, effects=effects, in_both=in_both)


def of_measure(measure: Measure, images: str, seeds: str | None) -> Estimate:
    """A measure that is no mean over images, with its uncertainty as far as it was also measured without groups of test images.

    Args:
        images: which test images: measures with the same are paired by groups of them.
        seeds: whose; None where nothing is drawn.
    """
    effects: dict[Variation, np.ndarray] = {}
    if seeds is not None and len(measure.values) > 1:
        effects[Variation("seeds", seeds)] = np.array(measure.values)
    if n := len(measure.without):
        effects[Variation("images", f"{images}, {n} groups")] = n * measure.mean - (n - 1) * np.array(measure.without)
    return Estimate(measure.mean, measure.std, 0 if seeds is None else len(measure.values), effects)


def mean_over_encoders(family: str, of_encoders: Iterable[Estimate]) -> Estimate:
    """The mean of a family, with the encoder as the unit of what may vary besides images: others of the family."""
    each = list(of_encoders)
    if len(each) == 1:
        return each[0]
    means, n = np.array([one.mean for one in each]), len(each)
    effects: dict[Variation, np.ndarray] = {Variation("encoders", family): means}
    if all(one.knows_images for one in each):
        for one in each:
            for source, units in one.effects.items():
                if source.kind == "images":
                    effects[source] = effects.get(source, 0) + units / n
    return Estimate(float(means.mean()), float(means.std(ddof=1)), min(one.n_seeds for one in each), effects)


def _by_image(correct: Bool[np.ndarray, "S N"], draws: int) -> tuple[Float[np.ndarray, "N"], float]:
    """The percentage of seeds that are right about each image, and `in_both` of their mean."""
    units = 100 * (correct.reshape(draws, -1, correct.shape[1]).mean(1) if draws > 1 else correct)
    n_units, n = units.shape
    residual = units - units.mean(0) - units.mean(1, keepdims=True) + units.mean()
    freedom = (n_units - 1) * (n - 1)
    return units.mean(0), float((residual**2).sum()) / freedom / units.size if freedom else 0.0


@lru_cache(maxsize=256)  # several sections ask for the same
def _read_correct(file: Path, member: str, modified: int) -> np.ndarray:
    """Which images each seed is right about, unchecked; `modified`: when the file was."""
    return array_of(file, f"`{member}`, [seeds, images]; probe it again", member)


def _check_correct(probe: Probe, correct: np.ndarray) -> None:
    """Refuse the array of a file that does not belong to the metrics.

    Raises:
        BeyondClsError: the file is of other seeds or images than the metrics, or gives another accuracy.
    """
    measure = probe.measures["top1"]
    if correct.dtype != bool:
        raise BeyondClsError(f"{probe.correct} has {correct.dtype}, expected bool [seeds, images]; probe it again")
    shape = (len(measure.values), probe.n_test)
    if correct.shape != shape:
        raise BeyondClsError(
            f"{probe.correct} is {correct.shape} (seeds, images), its metrics.json says {shape}; probe it again"
        )
    if abs(100 * correct.mean() - measure.mean) > 1e-3:
        raise BeyondClsError(
            f"{probe.correct} gives {100 * correct.mean():.3f} % correct, expected {measure.mean:.3f} % as its metrics.json "
            "says; the two are of different runs: probe it again"
        )
