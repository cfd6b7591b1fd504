"""What AbMILP gains over [cls] and over the average patch: in points, and as a share of their errors."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.report.content import Table
from pipelines.report.estimate import Estimate, Probes, estimate_of
from pipelines.report.measured import trained_first, untrained_encoders, with_converged
from pipelines.report.tables import differences, encoders
from pipelines.report.tables import table as declared

OVER = {"cls": "[cls]", "average": "the average patch"}
OF_MAP = "Average precision is no mean over test images: it has no share of errors and no interval."
INTERVALS = (
    "95 %: over test images, paired where they are the same, and over seeds (Student's t, Satterthwaite's degrees of freedom)."
)
MISSING = (
    "There is no interval, as not all probes say which images they classify correctly (trained/correct.npz); probe them again."
)


@dataclass(frozen=True)
class Gain:
    """AbMILP − another head.

    Attributes:
        points: of accuracy, or of mAP.
        share: of the errors that the other head makes, percent: at different accuracies points do not compare, as less or
            more is left to gain. None for mAP.
        log_odds: the difference of both log-odds of being right; None for mAP, too.
    """

    points: Estimate
    share: Estimate | None
    log_odds: Estimate | None

    def minus(self, other: "Gain") -> "Gain":
        """How much more; shares in percentage points."""
        share = None if self.share is None or other.share is None else self.share.minus(other.share)
        log_odds = None if self.log_odds is None or other.log_odds is None else self.log_odds.minus(other.log_odds)
        return Gain(self.points.minus(other.points), share, log_odds)


def gains(probes: Probes) -> dict[tuple[str, str], Gain]:
    """By encoder, trained ones first, and the head that AbMILP is compared with."""
    accuracy = {key: estimate_of(probe) for key, probe in probes.items() if key[1] in ("abmilp", *OVER)}
    gains = {}
    for encoder in trained_first({key: probes[key] for key in accuracy}):
        for head in OVER:
            if (encoder, head) in accuracy and (encoder, "abmilp") in accuracy:
                one, other = accuracy[encoder, "abmilp"], accuracy[encoder, head]
                accuracies = {probes[encoder, name].measure for name in (head, "abmilp")} == {"top1"}
                beside = (one.share_of(other), one.log_odds_above(other)) if accuracies else (None, None)
                gains[encoder, head] = Gain(one.minus(other), *beside)
    return gains


def contrasts_of_depth(probes: Probes) -> list[tuple[str, str, str]]:
    """Label and two encoders of each pair that is one encoder, trained on crops with stochastic depth and on as many without.

    Both were measured on one feature set, which shows that they are the same, and trained alike.
    """
    crops = {encoder: probe for (encoder, head), probe in probes.items() if head == "abmilp" and probe.crops}
    rates = {encoder: probe.recorded["augmentation"].get("drop_path", 0.0) for encoder, probe in crops.items()}
    alike = {e: (p.features["test"], p.crops, p.protocol, p.recorded.get("init")) for e, p in crops.items()}
    return [
        (f"{one} − {other}", one, other)
        for one, other in itertools.permutations(crops, 2)
        if rates[one] > rates[other] == 0 and alike[one] == alike[other]
    ]


def basis(probes: Probes) -> str:
    """What the spread and the interval of gains mean."""
    compared = [probe for (_, head), probe in probes.items() if head in ("abmilp", *OVER)]
    if compared and {probe.measure for probe in compared} == {"map"}:
        of_images = OF_MAP
    else:
        known = compared and all(probe.correct is not None and probe.test_images is not None for probe in compared)
        of_images = INTERVALS if known else MISSING
    return f"± is the standard deviation over seeds. {of_images}"


def table(probes: Probes, contrasts: Iterable[tuple[str, str, str]] = ()) -> Table | None:
    """A row for each encoder and each contrast, over [cls] and over the average patch; None without any gain.

    Args:
        contrasts: label, and the two encoders whose gains are subtracted.
    """
    if not (all_gains := gains(probes)):
        return None
    rows, contrasts = [], list(contrasts)
    for words, these in (("", all_gains), (", both with a converged classifier", gains(with_converged(probes)))):
        for head, called in OVER.items():
            of_head = {encoder: gain for (encoder, other), gain in these.items() if other == head}
            more = {name: of_head[a].minus(of_head[b]) for name, a, b in contrasts if a in of_head and b in of_head}
            rows += [(f"over {called}{words}", name, gain) for name, gain in (*of_head.items(), *more.items())]
    note = (
        "Accuracy with AbMILP minus that with the other head, and the same as share of the errors that the other head makes, "
        "if it makes any; differences of shares in percentage points. A converged classifier is logistic regression on the "
        f"vectors that trained aggregators give. {basis(probes)}"
    )
    return declared(
        "gains",
        "What AbMILP gains",
        note,
        rows,
        encoders(lambda row: row[1], untrained_encoders(probes)),
        differences("points", "Points", lambda row: row[2].points, fixed=True),
        differences("share", "Share of the errors removed, %", lambda row: row[2].share, apart=True, fixed=True),
        group=lambda row: row[0],
    )
