"""How much more AbMILP gains over [cls] on masked encoders than on joint-embedding ones: the paper's claim in one number."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.report.collect import Measure, Probe
from pipelines.report.families import JOINT, MASKED, family
from pipelines.report.tables import difference, unbroken

Probes = Mapping[tuple[str, str], Probe]


@dataclass(frozen=True)
class Lead:
    """(AbMILP − [cls]) on `masked` minus the same on `joint`.

    Attributes:
        points: its spread is the root of the summed variances of the four heads over seeds.
    """

    masked: str
    joint: str
    points: Measure

    @property
    def deviations(self) -> float | None:
        """In standard deviations; None where they are not known (one seed) or zero."""
        return self.points.mean / self.points.std if len(self.points.values) > 1 and self.points.std > 0 else None

    def told(self) -> str:
        """`+5.3 ± 0.4 points more on mae than on mocov3, 13.2 standard deviations`."""
        apart = "" if self.deviations is None else f", {self.deviations:.1f} standard deviations".replace("-", "−")
        return f"{unbroken(self.points)} points more on {self.masked} than on {self.joint}{apart}"


def gains(probes: Probes) -> dict[str, dict[str, Measure]]:
    """AbMILP − [cls], points, by family and encoder; of the encoders whose name says their family."""
    found: dict[str, dict[str, Measure]] = {MASKED: {}, JOINT: {}}
    for encoder in dict.fromkeys(encoder for encoder, _ in probes):
        gain = difference(probes.get((encoder, "abmilp")), probes.get((encoder, "cls")))
        if gain is not None and (kind := family(encoder)):
            found[kind][encoder] = gain
    return found


def lead(probes: Probes) -> Lead | None:
    """Of the masked encoder that gains least over the joint-embedding one that gains most; None without one of each."""
    by_family = gains(probes)
    if not all(by_family.values()):
        return None
    masked, low = min(by_family[MASKED].items(), key=lambda item: item[1].mean)
    joint, high = max(by_family[JOINT].items(), key=lambda item: item[1].mean)
    n = min(len(low.values), len(high.values))
    spread = math.hypot(low.std, high.std) if n > 1 else 0.0
    return Lead(masked, joint, Measure(low.mean - high.mean, spread, (math.nan,) * n))
