"""A comparison as tables: measures with their differences, and what differs in how they were made."""

from collections.abc import Collection, Sequence

from pipelines.comparing.descriptions import Difference
from pipelines.comparing.differences import Compared
from pipelines.report.content import Cell, Column, Row, Table
from pipelines.report.estimate import Estimate
from pipelines.report.rows import RECEIPTS
from pipelines.report.tables import NOTHING, plus_minus, spread

DIGITS = 2
SHOWN = 60  # characters of a value
NAMED = 3  # results by name, where something differs in more of them


def measures_table(rows: Sequence[Compared], a: str, b: str) -> Table:
    """A row for each measure that is shown."""
    columns = (
        *(Column(name, title, "text") for name, title in (("dataset", "Data set"), ("encoder", "Encoder"), ("head", "Head"))),
        Column("measure", "Measure", "text"),
        Column("a", "A", "spread"),
        Column("b", "B", "spread"),
        Column("difference", "B − A", "spread", apart=True),
        Column("interval", "95 %", "text"),
    )
    note = (
        f"A: {a}. B: {b}. Percent, entropies in nats. ± is the standard deviation over seeds, of a difference the root of the "
        "summed variances. Intervals are over test images, paired where they are the same, and over seeds, where both record "
        "how they vary with the images."
    )
    return Table("differences", "Measures", note, columns, tuple(map(_row, rows)))


def _row(row: Compared) -> Row:
    cells = [Cell(name or "–", name) for name in (*row.names, row.measure)]
    return Row((*cells, spread(row.a, DIGITS), spread(row.b, DIGITS), *_change(row.difference)))


def _change(difference: Estimate | None) -> tuple[Cell, Cell]:
    if difference is None:
        return NOTHING, NOTHING
    sign = "+" if round(difference.mean, DIGITS) > 0 else ""
    text = sign + plus_minus(difference.measure, DIGITS).replace("-", "−")
    std = difference.std if difference.n_seeds > 1 else None
    interval = Cell(difference.bounds(DIGITS), difference.bounds(3)) if difference.interval else NOTHING
    return Cell(text, difference.mean, std), interval


def descriptions_table(differences: Sequence[Difference], common: Collection[str], a: str, b: str) -> Table:
    """A row for each value that differs, and the results in which it does, of those that both have."""
    columns = tuple(
        Column(name, title, "text") for name, title in (("name", "Value"), ("a", "A"), ("b", "B"), ("results", "Results"))
    )
    note = f"A: {a}. B: {b}. Of what both have; a dash stands for what was not recorded."
    rows = tuple(Row((Cell(d.name, d.name), _value(d.a), _value(d.b), _places(d.places, common))) for d in differences)
    return Table("descriptions", "How they were made", note, columns, rows)


def _value(text: str | None) -> Cell:
    """JSON, without the quotes of plain texts, cut off where it is shown."""
    if text is None:
        return NOTHING
    plain = text[1:-1] if text.startswith('"') else text
    return Cell(plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…", text)


def _places(places: Sequence[str], common: Collection[str]) -> Cell:
    """Names of some, or that it is all: of the results, or of the extractions."""
    alike = sum(place.startswith(f"{RECEIPTS}/") == places[0].startswith(f"{RECEIPTS}/") for place in common)
    if len(places) == alike > 1:
        return Cell(f"all {alike}", " ".join(places))
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return Cell(", ".join(places[:NAMED]) + more, " ".join(places))
