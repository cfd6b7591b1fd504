"""A comparison as tables: measures with their differences, and what differs in how they were made."""

from collections.abc import Collection, Sequence

from pipelines.comparing.descriptions import Difference
from pipelines.comparing.differences import Compared
from pipelines.report.content import Cell, Table
from pipelines.report.estimate import Estimate
from pipelines.report.rows import RECEIPTS
from pipelines.report.tables import NOTHING, cells, plus_minus, spreads, table, texts

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
        cells("difference", "B − A", lambda row: _change(row.difference)[0], "spread", apart=True),
        cells("interval", "95 %", lambda row: _change(row.difference)[1], "text"),
    )


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
    return table(
        "descriptions",
        "How they were made",
        f"A: {a}. B: {b}. Of what both have; a dash stands for what was not recorded.",
        differences,
        texts("name", "Value", lambda row: row.name),
        cells("a", "A", lambda row: _value(row.a), "text"),
        cells("b", "B", lambda row: _value(row.b), "text"),
        cells("results", "Results", lambda row: _places(row.places, common), "text"),
    )


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
