"""Measures of two folders of results beside one another, with their differences."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.report.estimate import Estimate, estimate_of, of_measure
from pipelines.report.measured import Measure, in_order
from pipelines.report.reading import probe_in, read
from pipelines.report.rows import ResultFile, ResultFiles


@dataclass(frozen=True, eq=False)
class Compared:
    """One measure of both.

    Attributes:
        place: of the result, as in ResultFiles.
        names: what its encoder's folder is in, encoder, and head or what else is measured: a protocol, "box".
        first: whether it is the first measure of what is measured, the one that counts.
        a, b: None where it was not measured.
        difference: B − A, with an interval where both record how they vary with the test images.
    """

    place: str
    names: tuple[str, str, str]
    measure: str
    first: bool
    a: Measure | None
    b: Measure | None
    difference: Estimate | None

    @property
    def equal(self) -> bool:
        """The same number for every seed."""
        return self.a is not None and self.b is not None and self.a.values == self.b.values


def compared(a: ResultFiles, b: ResultFiles) -> list[Compared]:
    """Every measure of either, in the order of data sets, encoders and heads.

    Raises:
        BeyondClsError: what a head records of single images does not fit its measures.
    """
    of_either = {**b, **a}
    heads = in_order(result.head for result in of_either.values())

    def order(place: str) -> tuple[bool, str, tuple[str, ...], str, int]:
        result = of_either[place]
        return result.kind != "probes", result.kind, result.above, result.encoder, heads.index(result.head)

    return [row for place in sorted(of_either, key=order) for row in _rows(place, of_either[place], a.get(place), b.get(place))]


def _rows(place: str, result: ResultFile, a: ResultFile | None, b: ResultFile | None) -> Iterator[Compared]:
    dataset = "/".join(result.above if result.kind == "probes" else (result.kind, *result.above))
    of_a, of_b = ({} if one is None else one.groups for one in (a, b))
    for group in dict.fromkeys([*of_a, *of_b]):
        names = dataset, result.encoder, " ".join(filter(None, (result.head, group)))
        ours, theirs = of_a.get(group, {}), of_b.get(group, {})
        for number, name in enumerate(dict.fromkeys([*ours, *theirs])):
            one, other, difference = ours.get(name), theirs.get(name), None
            if a and b and one and other:
                by_image = name == "top1" and not group and one.values != other.values
                difference = _estimate(b, group, other, by_image).minus(_estimate(a, group, one, by_image))
            yield Compared(place, names, name, number == 0, one, other, difference)


def _estimate(result: ResultFile, group: str, measure: Measure, by_image: bool) -> Estimate:
    """With an interval where it records how it varies with the test images.

    Args:
        by_image: whether it is a head's share of test images, each of which is classified correctly or not.
    """
    if by_image:
        probe = read(result.file, "beyondcls probe", probe_in)
        assert probe is not None, f"{result.file} has measures"
        return estimate_of(probe)
    images = str(result.described.get("test_images", result.described.get("data")))
    return of_measure(measure, images, f"{result.file} {group}")
