"""Tables as files: for programs, for a paper, for a README, for a terminal. To add one: a file here and its line below."""

from collections.abc import Callable

from pipelines.report.content import Table
from pipelines.report.formats.csv_table import to_csv
from pipelines.report.formats.latex_table import to_latex
from pipelines.report.formats.markdown_table import to_markdown

# suffix of the file -> its writer
FORMATS: dict[str, Callable[[Table], str]] = {
    "csv": to_csv,
    "tex": to_latex,
    "md": to_markdown,
}
