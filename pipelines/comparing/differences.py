"""Measures of two folders of results beside one another, with their differences."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipelines.comparing.results import Place, Result
from pipelines.report.estimate import Estimate, estimates, of_measure
from pipelines.report.measured import Measure, Probe, in_order
from pipelines.report.reading import probe_in, read

Results = Mapping[Place, Result]


@dataclass(frozen=True, eq=False)
class Compared:
    """One measure of both.

    Attributes:
        group: what of the result it is of: a protocol, "box"; empty for a head.
        first: whether it is the first measure of its group, the one that counts.
        a, b: None where it was not measured.
        difference: B − A, with an interval where both record how they vary with the test images.
    """

    place: Place
    group: str
    measure: str
    first: bool
    a: Measure | None
    b: Measure | None
    difference: Estimate | None = None

    @property
    def in_one(self) -> bool:
        return self.a is None or self.b is None

    @property
    def by_image(self) -> bool:
        """Whether it is a head's share of test images, each of which is classified correctly or not."""
        return self.measure == "top1" and not self.group

    @property
    def equal(self) -> bool:
        """The same number for every seed."""
        return self.a is not None and self.b is not None and self.a.values == self.b.values


def compared(a: Results, b: Results) -> list[Compared]:
    """Every measure of either, in the order of data sets, encoders and heads.

    Raises:
        BeyondClsError: what a head records of single images does not fit its measures.
    """
    rows = [row for place in _in_order({*a, *b}) for row in _rows(place, a.get(place), b.get(place))]
    paired = _paired(a, b, {row.place for row in rows if row.by_image and not row.in_one and not row.equal})
    return [_with_difference(row, a.get(row.place), b.get(row.place), paired) for row in rows]


def _in_order(places: set[Place]) -> list[Place]:
    heads = {head: number for number, head in enumerate(in_order(place.parts[-1] for place in places if place.parts))}
    last = len(heads)
    return sorted(places, key=lambda p: (p.kind, p.parts[:-1], heads.get(p.parts[-1], last) if p.parts else last))


def _rows(place: Place, a: Result | None, b: Result | None) -> list[Compared]:
    of_a, of_b = ({} if result is None else result.groups for result in (a, b))
    rows = []
    for group in dict.fromkeys([*of_a, *of_b]):
        ours, theirs = of_a.get(group, {}), of_b.get(group, {})
        for number, measure in enumerate(dict.fromkeys([*ours, *theirs])):
            rows.append(Compared(place, group, measure, number == 0, ours.get(measure), theirs.get(measure)))
    return rows


def _paired(a: Results, b: Results, places: set[Place]) -> dict[Place, Estimate]:
    """Differences of accuracies; with intervals where both record which images they classify correctly."""
    by_side: dict[tuple[str, str], Probe] = {}
    for place in places:
        for side, results in (("a", a), ("b", b)):
            probe = read(results[place].file, "beyondcls probe", probe_in)
            assert probe is not None, f"{place} has measures"
            by_side[side, str(place)] = probe
    resampled = estimates(by_side, [name for _, name in by_side])
    return {place: resampled["b", str(place)].minus(resampled["a", str(place)]) for place in places}


def _with_difference(row: Compared, a: Result | None, b: Result | None, paired: Mapping[Place, Estimate]) -> Compared:
    if row.by_image and row.place in paired:
        return replace(row, difference=paired[row.place])
    ours, theirs = (
        None if measure is None or result is None else of_measure(measure, _images(result), f"{result.file} {row.group}")
        for measure, result in ((row.a, a), (row.b, b))
    )
    return row if ours is None or theirs is None else replace(row, difference=theirs.minus(ours))


def _images(result: Result) -> str:
    """What tells test images apart."""
    return str(result.described.get("test_images", result.described.get("data")))
