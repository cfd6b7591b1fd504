"""Published numbers beside ours: which of ours has the encoder, data set, head, protocol and measure of each."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.report.collect import Inputs
from pipelines.report.estimate import Estimate, estimates
from pipelines.report.measured import Measure
from pipelines.report.published.row import PublishedRow
from pipelines.report.results import Result, results

STEPLESS = ("knn", "logistic", "ridge")  # names in CLOSED; a published number of one is compared with heads of it alone


@dataclass(frozen=True)
class Match:
    """A published number and one of ours.

    Attributes:
        file: name of the file of the published one.
        ours: mean and spread over seeds.
        difference: ours − published, in the unit of the measure.
    """

    file: str
    published: PublishedRow
    result: Result
    ours: Measure
    difference: Estimate

    @property
    def is_within(self) -> bool | None:
        """Whether the published number is within our interval: over test images, or twice the spread over seeds.

        None if neither is known.
        """
        sign = self.difference.sign
        return None if sign is None else sign == 0


@dataclass(frozen=True)
class Unmatched:
    """A published number that none of ours is compared with.

    Attributes:
        file: name of its file.
        lacks: what none of ours has: "encoder", or, of that encoder, "data set", and so on.
        name: of what is lacking.
        nearest: the nearest name of ours; empty if there is none at all.
    """

    file: str
    published: PublishedRow
    lacks: str
    name: str
    nearest: str


def compared(inputs: Inputs) -> tuple[list[Match], list[Unmatched]]:
    """Each published number with all of ours that it compares with, in the order of the files; and those without any.

    Raises:
        BeyondClsError: a record of correct test images does not fit its metrics.
    """
    ours = results(inputs)
    matches: list[Match] = []
    unmatched: list[Unmatched] = []
    for file, rows in inputs.against.items():
        for row in rows:
            left, lacks, name, names = _narrowed(row, ours)
            if left:
                matches += [_match(file, row, result) for result in left]
            else:
                near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.0)
                unmatched.append(Unmatched(file, row, lacks, name, near[0] if near else ""))
    return matches, unmatched


def in_words(inputs: Inputs) -> list[str]:
    """A line for each file: how many of its numbers have one of ours beside them."""
    if not inputs.against:
        return []
    unmatched = [entry.file for entry in compared(inputs)[1]]
    return [
        f"{file}: {len(rows) - unmatched.count(file):,} of {len(rows):,} published numbers compared"
        + (", the others are in tables/against-unmatched.csv" if file in unmatched else "")
        for file, rows in inputs.against.items()
    ]


def _narrowed(row: PublishedRow, ours: Sequence[Result]) -> tuple[list[Result], str, str, Iterable[str]]:
    """Ours that a number compares with; or none, and what none has: which part, its name, and the names that there are."""
    left = [r for r in ours if row.encoder in (r.probe.encoder, r.probe.recorded_encoder)]
    if not left:
        return [], "encoder", row.encoder, {r.probe.encoder for r in ours}
    before, left = left, [r for r in left if r.dataset == row.dataset]
    if not left:
        return [], "data set", row.dataset, {r.dataset for r in before if r.dataset}
    before, left = left, _with_head(row.head, left)
    if not left:
        return [], "head", row.head, {r.probe.head for r in before}
    protocol = row.protocol if row.protocol in STEPLESS else ""
    before, left = left, [r for r in left if r.protocol == protocol]
    if not left:
        return [], "protocol", row.protocol or "of gradient steps", {r.protocol or "of gradient steps" for r in before}
    before, left = left, [r for r in left if r.measure(row.metric) is not None]
    return left, "metric", row.metric, {name for r in before for name in r.measures}


def _with_head(head: str, ours: Sequence[Result]) -> list[Result]:
    """Ours of this name; in a study, or outside of one, where none has it: the only one with the aggregator of this name."""
    named: list[Result] = []
    for study in dict.fromkeys(r.study for r in ours):
        of_study = [r for r in ours if r.study == study]
        by_name = [r for r in of_study if r.probe.head == head]
        by_aggregator = [r for r in of_study if r.probe.aggregator == head]
        named += by_name or (by_aggregator if len(by_aggregator) == 1 else [])
    return named


def _match(file: str, row: PublishedRow, result: Result) -> Match:
    measure, probe = result.measure(row.metric), result.probe
    assert measure is not None
    ours = Estimate(measure.mean, measure.std, len(measure.values))
    if row.metric == probe.measure:
        key = (probe.encoder, probe.head)
        ours = estimates({key: probe}, [probe.head])[key]
    samples = None if ours.samples is None else ours.samples - row.value
    return Match(file, row, result, measure, Estimate(ours.mean - row.value, ours.std, ours.n_seeds, samples, ours.images))
