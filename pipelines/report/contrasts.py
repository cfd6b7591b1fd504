"""Differences of accuracy between heads or encoders, each with its interval: a table, for sections that compare many."""

from collections.abc import Iterable, Sequence

import numpy as np

from pipelines.report.content import Table
from pipelines.report.estimate import estimate_of
from pipelines.report.measured import Probe
from pipelines.report.remarks import WORDS, score_name
from pipelines.report.tables import differences as between
from pipelines.report.tables import numbers, texts
from pipelines.report.tables import table as declared

Contrast = tuple[Sequence[str], Probe, Probe]  # labels, and two probes: the first − the second
VERDICTS = {1: "ahead", -1: "behind", 0: "not shown", None: "not shown"}


def table(name: str, heading: str, labels: Sequence[str], contrasts: Iterable[Contrast], note: str = "") -> Table | None:
    """A row for each contrast; None where there are none.

    p is that of two-sided tests with the intervals' errors and degrees of freedom, corrected for all rows of the table.

    Args:
        labels: titles of the columns with the labels of contrasts.
        note: what is said before all else.
    """
    compared = list(contrasts)
    if not compared:
        return None
    differences = [estimate_of(one).minus(estimate_of(other)) for _, one, other in compared]
    corrected = holm([difference.p for difference in differences])
    rows = list(zip(compared, differences, corrected, strict=True))
    about = (
        f"Points of {WORDS[score_name(one for _, one, _ in compared)]}, mean ± standard deviation over seeds; 95 % over test "
        "images and seeds. Ahead or behind: the interval is on one side of 0. All of these comparisons are exploratory: p is "
        "corrected for the rows of this table (Holm). A dash: there was one seed, or no record of which images are right."
    )
    return declared(
        name,
        heading,
        f"{note} {about}".strip(),
        rows,
        *(texts(label.lower().replace(" ", "_"), label, lambda row, at=at: row[0][0][at]) for at, label in enumerate(labels)),  # type: ignore[misc]
        between("points", "Points", lambda row: row[1], apart=True, fixed=True),
        numbers("p_holm", "p, corrected", lambda row: row[2], 3, optional=True),
        texts("verdict", "Verdict", lambda row: VERDICTS[row[1].sign]),
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p corrected for several tests; of those that are unknown nothing is known.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    raised = np.maximum.accumulate([p * (len(known) - rank) for rank, (p, _) in enumerate(known)])
    corrected: list[float | None] = [None] * len(p_values)
    for (_, i), p in zip(known, raised, strict=True):
        corrected[i] = min(float(p), 1.0)
    return corrected
