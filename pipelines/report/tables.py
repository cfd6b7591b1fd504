"""How tables are declared, column by column, and how heads, numbers and differences are written.

table("best", "Best head", NOTE, probes, encoders(), heads(), spreads("top1", "Top-1, %", lambda probe: probe.score))
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.report.content import Cell, Column, Kind, Row, Table
from pipelines.report.estimate import Estimate
from pipelines.report.measured import Measure, Probe

TITLES = {"cls": "[cls]", "average": "average", "abmilp": "AbMILP"}
NOTHING = Cell("–")
RANDOM = "random twin"  # the tag of an encoder that was never trained
EFFECTIVE = (
    "Effective patches: exp of the entropy; so many equally weighted patches have that entropy; a plain average has all T."
)


def title(head: str) -> str:
    """A head's name as the paper writes it."""
    return TITLES.get(head, head)


def plus_minus(measure: Measure | None, digits: int = 1) -> str:
    """`43.1 ± 2.5`; without the spread if there was one seed, a dash without a measure."""
    if measure is None:
        return "–"
    if len(measure.values) < 2:
        return f"{measure.mean:.{digits}f}"
    return f"{measure.mean:.{digits}f} ± {_format_deviation(measure.std, digits)}"


def _format_deviation(std: float, digits: int = 1) -> str:
    """With one more digit where it would round to zero."""
    return f"{std:.{digits + (std > 0 and round(std, digits) == 0)}f}"


def signed(value: float) -> str:
    """`+2.1`, `−0.4`, `0.0`."""
    rounded = f"{value:+.1f}"
    return "0.0" if float(rounded) == 0 else rounded.replace("-", "−")


def points(difference: Measure | Estimate | None) -> str:
    """A difference in points with its sign: `+2.1 ± 2.5`, `−0.4 ± 0.3`."""
    if difference is None:
        return "–"
    if isinstance(difference, Estimate):
        difference = difference.measure
    text = signed(difference.mean)
    return text if len(difference.values) < 2 else f"{text} ± {_format_deviation(difference.std)}"


def ceiling(probe: Probe | None) -> float | None:
    """ln T, nats: the entropy of uniform weights over T patches."""
    return math.log(probe.n_tokens) if probe is not None and probe.n_tokens else None


def selects(probe: Probe) -> bool:
    """Whether a head weights patches, and not all alike."""
    entropy, even = probe.measures.get("entropy"), ceiling(probe)
    return entropy is not None and even is not None and not math.isclose(entropy.mean, even, rel_tol=1e-6)


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def pairs(values: Mapping[str, Any]) -> str:
    """`epochs 2, lr 0.001`."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def spread(measure: Measure | None, digits: int = 1) -> Cell:
    """Mean and standard deviation over seeds."""
    if measure is None:
        return NOTHING
    return Cell(plus_minus(measure, digits), measure.mean, measure.std if len(measure.values) > 1 else None)


def change(difference: Estimate | None) -> Cell:
    """A difference in points, with its sign."""
    return NOTHING if difference is None else Cell(points(difference), difference.mean, spread(difference.measure).std)


def interval(estimate: Estimate | None, digits: int = 1) -> Cell:
    """95 %: `3.8 to 5.0`; a dash where it is unknown."""
    return Cell(estimate.bounds(digits), estimate.bounds(3)) if estimate and estimate.interval else NOTHING


def number(value: float | None, digits: int = 2) -> Cell:
    """One number; a dash for None."""
    return NOTHING if value is None else Cell(f"{value:,.{digits}f}".replace("-", "−"), value)


def name_cell(encoder: str, is_untrained: bool) -> Cell:
    """An encoder, tagged if it was never trained."""
    return Cell(encoder, encoder, tag=RANDOM if is_untrained else "")


def effective(entropy: float | None) -> Cell:
    """The effective number of patches, exp(H); see EFFECTIVE."""
    return number(None if entropy is None else math.exp(entropy), 1)


@dataclass(frozen=True)
class DeclaredColumn(Column):
    """A column, and how its cells are made from the item of a row.

    Attributes:
        best: what is bold: "column", the highest of it (`within` of the table); "row", or another text that begins so, the
            highest of all cells of a row whose columns have that text. As they are shown, with `digits`.
        optional: it is left out where no row has anything in it.
    """

    cell: Callable[[Any], Cell] = field(default=lambda _: NOTHING, compare=False)
    best: str = ""
    digits: int = 1
    optional: bool = False


def cells(name: str, heading: str, cell: Callable[[Any], Cell], kind: Kind = "number", **about: Any) -> DeclaredColumn:
    """A column of any cells. `about`: further fields."""
    return DeclaredColumn(name, heading, kind, cell=cell, **about)


def texts(
    name: str, heading: str, value: Callable[[Any], Any], shown: Callable[[Any], str] = str, **about: Any
) -> DeclaredColumn:
    """A column of texts; `shown`: of a value. A dash where there is none."""

    def cell(item: Any) -> Cell:
        text = value(item)
        return NOTHING if text in (None, "") else Cell(shown(text), str(text))

    return cells(name, heading, cell, "text", **about)


def encoders(encoder: Callable[[Any], Any] = lambda item: item, random: Collection[str] = (), **about: Any) -> DeclaredColumn:
    """The column of encoders, tagged where they were never trained: results, or names of which `random` are untrained."""

    def cell(item: Any) -> Cell:
        one = encoder(item)
        return name_cell(one, one in random) if isinstance(one, str) else name_cell(one.encoder, one.pretraining.is_untrained)

    return cells("encoder", "Encoder", cell, "text", **about)


def heads(head: Callable[[Any], str] = lambda probe: str(probe.head), **about: Any) -> DeclaredColumn:
    """The column of heads, as the paper calls them."""
    return texts("head", "Head", head, title, **about)


def numbers(name: str, heading: str, value: Callable[[Any], float | None], digits: int = 2, **about: Any) -> DeclaredColumn:
    """A column of single numbers."""
    return cells(name, heading, lambda item: number(value(item), digits), digits=digits, **about)


def means(name: str, heading: str, value: Callable[[Any], Measure | None], digits: int = 1, **about: Any) -> DeclaredColumn:
    """A column of means without their spread, as of what draws nothing."""
    return numbers(name, heading, lambda item: getattr(value(item), "mean", None), digits, **about)


def spreads(name: str, heading: str, value: Callable[[Any], Measure | None], digits: int = 1, **about: Any) -> DeclaredColumn:
    """A column of means with their standard deviations over seeds."""
    return cells(name, heading, lambda item: spread(value(item), digits), "spread", digits=digits, **about)


def differences(
    name: str, heading: str, value: Callable[[Any], Estimate | None], apart: bool = False, fixed: bool = False
) -> list[DeclaredColumn]:
    """A column of differences in points, and one of their intervals, which a table that is not `fixed` may lack."""
    return [
        cells(name, heading, lambda item: change(value(item)), "spread", apart=apart),
        cells(f"{name}_interval", "95 %", lambda item: interval(value(item)), "text", optional=not fixed),
    ]


def each(
    keys: Iterable[Any], make: Callable[[Any], "DeclaredColumn | list[DeclaredColumn]"], apart: bool = False
) -> list[DeclaredColumn]:
    """The columns of each of these; a rule precedes the first if they are set `apart`."""
    made = _flatten(make(key) for key in keys)
    return [replace(column, apart=True) if apart and place == 0 else column for place, column in enumerate(made)]


def _flatten(columns: Iterable[DeclaredColumn | Iterable[DeclaredColumn]]) -> list[DeclaredColumn]:
    return [one for some in columns for one in ([some] if isinstance(some, DeclaredColumn) else some)]


def table(
    name: str,
    heading: str,
    note: str,
    items: Iterable[Any],
    *columns: DeclaredColumn | Iterable[DeclaredColumn],
    group: Callable[[Any], str] = lambda item: "",
    muted: Callable[[Any], bool] | None = None,
    within: Callable[[Any], Any] = lambda item: None,
    folded: bool = False,
) -> Table:
    """A row for each item.

    Args:
        group: of a row; rows of one group follow one another.
        muted: which rows are greyed; by default those of random twins.
        within: rows among which the highest of a column is bold; all by default.
    """
    declared, items = _flatten(columns), list(items)
    made = [[column.cell(item) for column in declared] for item in items]
    compared: dict[Any, list[tuple[int, int]]] = {}
    for i, item in enumerate(items):
        for j, column in enumerate(declared):
            if column.best and made[i][j].value is not None:
                place = (j, within(item)) if column.best == "column" else (column.best, i)
                compared.setdefault(place, []).append((i, j))
    for places in compared.values():
        shown = {(i, j): round(float(made[i][j].value or 0), declared[j].digits) for i, j in places}
        highest = max(shown.values())
        for i, j in (place for place, value in shown.items() if value == highest):
            made[i][j] = replace(made[i][j], best=True)
    kept = [j for j, column in enumerate(declared) if not column.optional or any(row[j] != NOTHING for row in made)]
    rows = tuple(
        Row(tuple(row[j] for j in kept), group(item), row[0].tag == RANDOM if muted is None else muted(item))
        for item, row in zip(items, made, strict=True)
    )
    return Table(name, heading, note, tuple(declared[j] for j in kept), rows, folded=folded)


def file_names(prefix: str, names: list[str]) -> dict[str, str]:
    """`PREFIX-NAME` for each name, in lower-case words joined by "-"; numbered where two would be the same."""
    by_name: dict[str, str] = {}
    for name in names:
        plain = f"{prefix}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}".rstrip("-")
        same = sum(other == plain or other.startswith(f"{plain}--") for other in by_name.values())
        by_name[name] = f"{plain}--{same + 1}" if same else plain
    return by_name
