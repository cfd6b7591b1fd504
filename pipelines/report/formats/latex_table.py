r"""A table in LaTeX, for \input: needs \usepackage{booktabs} and nothing else."""

from itertools import groupby

from pipelines.report.content import Cell, Column, Table

# LaTeX takes "[" after the end of a line for extra space below that line.
ESCAPES = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "{}$&#_%"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "√": r"$\surd$",
    "²": "$^2$",
    "–": "--",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "\N{NO-BREAK SPACE}": "~",
}


def to_latex(table: Table) -> str:
    """A float with caption and label `tab:NAME`; the best in bold, groups apart; without the explanation."""
    titles = " & ".join(escaped(column.title) for column in table.columns)
    caption = " ".join(filter(None, (f"{table.title}.", table.caption, table.published and f"Source: {table.published}.")))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{''.join(map(_alignment, table.columns))}}}",
        r"\toprule",
        rf"{titles} \\",
    ]
    for group, rows in groupby(table.rows, lambda row: row.group):
        lines.append(r"\midrule")
        if group:
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\emph{{{escaped(group)}}}}} \\")
        lines += (" & ".join(map(_cell, row.cells)) + r" \\" for row in rows)
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX prints literally, in one line."""
    return "".join(ESCAPES.get(sign, sign) for sign in text.replace("\n", " "))


def _alignment(column: Column) -> str:
    """Space in place of the page's rule: booktabs has no vertical rules."""
    return (r"@{\hspace{2em}}" if column.apart else "") + ("l" if column.kind == "text" else "r")


def _cell(cell: Cell) -> str:
    text = escaped(cell.text + (f" ({cell.tag})" if cell.tag else ""))
    return rf"\textbf{{{text}}}" if cell.best else text
