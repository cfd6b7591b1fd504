"""What tables and sentences share: how heads and numbers are written, and differences of accuracy."""

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import replace

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Table
from pipelines.report.estimate import Estimate, difference
from pipelines.report.measured import Measure, Probe

TITLES = {"cls": "[cls]", "average": "average", "abmilp": "AbMILP"}
NOTHING = Cell("–")
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
    return f"{measure.mean:.{digits}f} ± {_deviation(measure.std, digits)}"


def _deviation(std: float, digits: int = 1) -> str:
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
    return text if len(difference.values) < 2 else f"{text} ± {_deviation(difference.std)}"


def gain(inputs: Inputs, encoder: str) -> Estimate | None:
    """AbMILP − [cls] of one encoder, points; None where either was not probed."""
    return difference(inputs.probes.get((encoder, "abmilp")), inputs.probes.get((encoder, "cls")))


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


def spread(measure: Measure | None, digits: int = 1, best: bool = False) -> Cell:
    """Mean and standard deviation over seeds."""
    if measure is None:
        return NOTHING
    return Cell(plus_minus(measure, digits), measure.mean, measure.std if len(measure.values) > 1 else None, best)


def with_best(measures: Iterable[Measure | None], digits: int = 1) -> list[Cell]:
    """A cell for each measure; the highest, as they are shown, are bold."""
    each = list(measures)
    best = max((round(measure.mean, digits) for measure in each if measure), default=None)
    return [spread(m, digits, best=m is not None and round(m.mean, digits) == best) for m in each]


def change(difference: Estimate | None) -> Cell:
    """A difference in points, with its sign."""
    return NOTHING if difference is None else Cell(points(difference), difference.mean, spread(difference.measure).std)


def with_interval(difference: Estimate | None) -> tuple[Cell, Cell]:
    """A difference in points, and its interval; the columns are of `interval_beside`."""
    known = difference is not None and difference.interval is not None
    return change(difference), Cell(difference.bounds(), difference.bounds(3)) if difference and known else NOTHING


def interval_beside(column: Column) -> tuple[Column, Column]:
    """A column of differences, and that of their intervals."""
    return column, Column(f"{column.name}_interval", "95 %", "text")


def with_known_intervals(table: Table) -> Table:
    """Without columns of intervals (`interval_beside`) that no row has."""
    kept = [
        any(row.cells[i] != NOTHING for row in table.rows) or not column.name.endswith("_interval")
        for i, column in enumerate(table.columns)
    ]
    rows = tuple(replace(row, cells=tuple(itertools.compress(row.cells, kept))) for row in table.rows)
    return replace(table, columns=tuple(itertools.compress(table.columns, kept)), rows=rows)


def named(encoder: str, is_untrained: bool) -> Cell:
    """An encoder, tagged if it was never trained."""
    return Cell(encoder, encoder, tag="random twin" if is_untrained else "")


def number(value: float | None, digits: int = 2) -> Cell:
    """One number; a dash for None."""
    return NOTHING if value is None else Cell(f"{value:,.{digits}f}", value)


def effective(entropy: float | None) -> Cell:
    """The effective number of patches, exp(H); see EFFECTIVE."""
    return number(None if entropy is None else math.exp(entropy), 1)


def file_names(prefix: str, names: list[str]) -> dict[str, str]:
    """`PREFIX-NAME` for each name, in lower-case words joined by "-"; numbered where two would be the same."""
    by_name: dict[str, str] = {}
    for name in names:
        plain = f"{prefix}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}".rstrip("-")
        same = sum(other == plain or other.startswith(f"{plain}--") for other in by_name.values())
        by_name[name] = f"{plain}--{same + 1}" if same else plain
    return by_name
