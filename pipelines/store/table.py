"""Plain tables: they can be piped and are not cut at the width of a terminal."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines with aligned columns; `right` numbers those that are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def size(nbytes: float) -> str:
    """Bytes with three digits and a unit: `1.23 GB`."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * factor:
            return f"{nbytes / factor:.3g} {unit}"
    return f"{nbytes:.3g} B"
