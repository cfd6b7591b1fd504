import csv
import io
import re

from rich.console import Console

from pipelines.report.content import Cell, Column, Row, Table
from pipelines.report.formats.csv_table import to_csv
from pipelines.report.formats.latex_table import ESCAPES, to_latex
from pipelines.report.formats.latex_table import escaped as latex
from pipelines.report.formats.markdown_table import SPECIAL, to_markdown
from pipelines.report.formats.markdown_table import escaped as markdown
from pipelines.report.formats.terminal_table import to_terminal

EVIL = 'a|b & 50 % <i> _x_ #1 $y$ {z} \\ [w] ~ ^ "q"'
TABLE = Table(
    "a-table",
    "A title & more",
    "What it is: 100 %.",
    (Column("name", "Name", "text"), Column("top1", "Top-1", "spread", apart=True), Column("n", "N_x")),
    (
        Row((Cell(EVIL, EVIL), Cell("1.2 ± 0.1", 1.23456789, 0.1, best=True), Cell("3", 3)), "one"),
        Row((Cell("[cls]", tag="no [x]"), Cell("–"), Cell("–")), "one"),
        Row((Cell("c"), Cell("2.0", 2.0), Cell("4", 4)), "two"),
    ),
    published="A. Author: & co",
)


def test_csv_is_in_full_precision_and_empty_for_nothing():
    assert list(csv.reader(io.StringIO(to_csv(TABLE)))) == [
        ["group", "name", "top1", "top1_std", "n"],
        ["one", EVIL, "1.23456789", "0.1", "3"],
        ["one", "[cls]", "", "", ""],
        ["two", "c", "2.0", "", "4"],
    ]


def test_csv_computes_nothing():
    rows = tuple(Row((Cell(n), Cell("", -1))) for n in ("=1+1", "-0.5"))
    table = Table("t", "", "", (Column("name", "", "text"), Column("n", "N")), rows)
    assert to_csv(table).splitlines() == ["name,n", "'=1+1,-1", "-0.5,-1"]


def test_csv_has_no_groups_where_there_are_none():
    table = Table("t", "T", "", (Column("a", "A", "text"),), (Row((Cell("–"),)), Row((Cell("shown", "value"),))))
    assert to_csv(table) == 'a\n""\nvalue\n'


def test_latex_has_rules_groups_bold_and_caption():
    lines = to_latex(TABLE).splitlines()
    assert r"\begin{tabular}{l@{\hspace{2em}}rr}" in lines
    assert r"\caption{A title \& more. What it is: 100 \%. Source: A. Author: \& co.}" in lines
    assert r"\label{tab:a-table}" in lines
    assert r"Name & Top-1 & N\_x \\" in lines
    assert r"\multicolumn{3}{l}{\emph{one}} \\" in lines
    assert r"{[}cls{]} (no {[}x{]}) & -- & -- \\" in lines
    assert any(r"& \textbf{1.2 $\pm$ 0.1} & 3 \\" in line for line in lines)
    rules = [line for line in lines if line.endswith("rule")]
    assert rules == [r"\toprule", r"\midrule", r"\midrule", r"\bottomrule"]


def test_each_sign_is_escaped_once():
    assert all(latex(f"a{sign}b") == f"a{ESCAPES[sign]}b" for sign in ESCAPES)
    assert all(markdown(f"a{sign}\nb") == f"a\\{sign} b" for sign in SPECIAL)


def test_markdown_has_title_groups_bold_and_note():
    lines = to_markdown(TABLE).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")} == {4}
    assert lines[0] == r"### A title \& more"
    assert lines[2:4] == [r"| Name | Top-1 | N\_x |", "| --- | ---: | ---: |"]
    assert lines[4] == "| **one** |  |  |"
    assert lines[5].endswith("| **1.2 ± 0.1** | 3 |")
    assert lines[6] == r"| \[cls\] (no \[x\]) | – | – |"
    assert lines[-1] == r"What it is: 100 %. Source: A. Author: \& co."


def test_terminal_shows_names_as_text():
    console = Console(width=100, file=io.StringIO())
    console.print(to_terminal(TABLE))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("A title & more", "[cls] (no [x])", "1.2 ± 0.1", "Top-1"):
        assert expected in shown
