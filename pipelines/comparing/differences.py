"""Two folders of results side by side: differences of measures, and what differs in how results were made."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.report.content import Cell, Table
from pipelines.report.estimate import Estimate, estimate_of, of_measure
from pipelines.report.kinds import RECEIPTS
from pipelines.report.measured import Measure, in_order
from pipelines.report.reading import probe_in, read
from pipelines.report.rows import GROUPS, ResultFile, ResultFiles
from pipelines.report.tables import NOTHING, cells, interval, plus_minus, spreads, table, texts
from probe.result_files import is_measure


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


def compare_results(a: ResultFiles, b: ResultFiles) -> list[Compared]:
    """Every measure of either, in the order of data sets, encoders and heads.

    Raises:
        BeyondClsError: what a head records of single images does not fit its measures.
    """
    of_either = {**b, **a}
    heads = in_order(result.head for result in of_either.values())

    def order(place: str) -> tuple[bool, str, tuple[str, ...], str, int]:
        result = of_either[place]
        return result.kind != "probes", result.kind, result.above, result.encoder, heads.index(result.head)

    return [
        row for place in sorted(of_either, key=order) for row in _pair_rows(place, of_either[place], a.get(place), b.get(place))
    ]


def _pair_rows(place: str, result: ResultFile, a: ResultFile | None, b: ResultFile | None) -> Iterator[Compared]:
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


LEFT_OUT = ("command", "notes", "seconds")  # of what else is said in other words; and times
FIRST = ("versions", "machine", "extraction", "features")  # what concerns many results


@dataclass(frozen=True)
class Difference:
    """A value that differs.

    Attributes:
        name: `recipe.epochs`.
        a, b: as JSON; None where it was not recorded.
        places: results in which it differs like this, as in ResultFiles.
    """

    name: str
    a: str | None
    b: str | None
    places: tuple[str, ...]


def differences_in_descriptions(a: ResultFiles, b: ResultFiles) -> list[Difference]:
    """Values that differ between results that both have, each with all results in which it does so."""
    places: dict[tuple[str, str | None, str | None], list[str]] = {}
    for place in sorted({*a} & {*b}):
        ours, theirs = (dict(_flatten(results[place].described)) for results in (a, b))
        for name in dict.fromkeys([*ours, *theirs]):
            if (values := (ours.get(name), theirs.get(name)))[0] != values[1]:
                places.setdefault((name, *values), []).append(place)
    found = [Difference(*values, tuple(where)) for values, where in places.items()]
    return sorted(found, key=lambda d: (*(d.name.partition(".")[0] != first for first in FIRST), d.name))


def _flatten(described: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Values as JSON by their dotted names, without measures, and without parts of what holds measures of several things."""
    for name, value in described.items():
        if name in LEFT_OUT or is_measure(value):
            continue
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        elif not (isinstance(value, list) and name in GROUPS and any(isinstance(one, Mapping) for one in value)):
            yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False)


DIGITS = 2
SHOWN = 60  # characters of a value
NAMED = 3  # results by name, where something differs in more of them


def measures_table(rows: Sequence[Compared], a: str, b: str) -> Table:
    """A row for each measure that is shown."""
    note = (
        f"A: {a}. B: {b}. Percent, entropies in nats. ± is the standard deviation over seeds, of a difference the root of the "
        "summed variances. Intervals are over test images, paired where they are the same, and over seeds, where both record "
        "how they vary with the images."
    )
    return table(
        "differences",
        "Measures",
        note,
        rows,
        texts("dataset", "Data set", lambda row: row.names[0]),
        texts("encoder", "Encoder", lambda row: row.names[1]),
        texts("head", "Head", lambda row: row.names[2]),
        texts("measure", "Measure", lambda row: row.measure),
        spreads("a", "A", lambda row: row.a, DIGITS),
        spreads("b", "B", lambda row: row.b, DIGITS),
        cells("difference", "B − A", lambda row: _change_cell(row.difference), "spread", apart=True),
        cells("interval", "95 %", lambda row: interval(row.difference, DIGITS), "text"),
    )


def _change_cell(difference: Estimate | None) -> Cell:
    if difference is None:
        return NOTHING
    sign = "+" if round(difference.mean, DIGITS) > 0 else ""
    text = sign + plus_minus(difference.measure, DIGITS).replace("-", "−")
    return Cell(text, difference.mean, difference.std if difference.n_seeds > 1 else None)


def descriptions_table(differences: Sequence[Difference], common: Collection[str], a: str, b: str) -> Table:
    """A row for each value that differs, and the results in which it does, of those that both have."""
    return table(
        "descriptions",
        "How they were made",
        f"A: {a}. B: {b}. Of what both have; a dash stands for what was not recorded.",
        differences,
        texts("name", "Value", lambda row: row.name),
        cells("a", "A", lambda row: _value_cell(row.a), "text"),
        cells("b", "B", lambda row: _value_cell(row.b), "text"),
        cells("results", "Results", lambda row: _places_cell(row.places, common), "text"),
    )


def _value_cell(text: str | None) -> Cell:
    """JSON, without the quotes of plain texts, cut off where it is shown."""
    if text is None:
        return NOTHING
    plain = text[1:-1] if text.startswith('"') else text
    return Cell(plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…", text)


def _places_cell(places: Sequence[str], common: Collection[str]) -> Cell:
    """Names of some, or that it is all: of the results, or of the extractions."""
    alike = sum(place.startswith(f"{RECEIPTS}/") == places[0].startswith(f"{RECEIPTS}/") for place in common)
    if len(places) == alike > 1:
        return Cell(f"all {alike}", " ".join(places))
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return Cell(", ".join(places[:NAMED]) + more, " ".join(places))
