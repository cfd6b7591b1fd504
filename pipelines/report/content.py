"""The content of the report in any format: sections of text, tables, figures and pictures.

Nothing here is HTML, LaTeX or Markdown: strings are plain text, which the writers escape.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import UInt8

Kind = Literal["text", "number", "spread"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: in CSV; snake_case, unique in its table.
        title: as shown.
        kind: "text", "number", or "spread": a mean with a standard deviation, which CSV gives as NAME and NAME_std.
        apart: a rule precedes it.
        filters: the page offers to show the rows with one of its values alone.
        of: what columns are of that are shown one at a time, if the reader chooses one, such as "Data set".
    """

    name: str
    title: str
    kind: Kind = "number"
    apart: bool = False
    filters: bool = False
    of: str = ""


@dataclass(frozen=True)
class Cell:
    """An entry of a table.

    Attributes:
        text: as shown; an en dash if there is no value.
        value: in full precision, what CSV holds and what a column is sorted by; None without a value.
        std: next to it, in a column of kind "spread"; None with fewer than two seeds.
        best: set in bold: the best of what it is compared with, ties (as shown) included.
        tag: a word that is shown next to it, such as "random twin".
    """

    text: str
    value: float | str | None = None
    std: float | None = None
    best: bool = False
    tag: str = ""


@dataclass(frozen=True)
class Row:
    """Cells in the order of the columns. Rows of one `group` are together under its name; `muted` ones are greyed."""

    cells: tuple[Cell, ...]
    group: str = ""
    muted: bool = False


@dataclass(frozen=True)
class Table:
    """A table, for the page and as files.

    Attributes:
        name: of its files, unique in the report; lower-case words joined by "-".
        note: what the numbers are: measure, unit, mean and spread over what, what bold means. Its first two sentences are the
            caption; what explains more follows them.
        published: where the numbers were taken from, if they are not ours; such a table is set apart on the page.
        folded: closed on the page until it is clicked.
    """

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    published: str = ""
    folded: bool = False

    @property
    def caption(self) -> str:
        return " ".join(self._sentences[:2])

    @property
    def explanation(self) -> str:
        """What of the note is no caption."""
        return " ".join(self._sentences[2:])

    @property
    def _sentences(self) -> list[str]:
        return re.split(r"(?<=[.?!]) (?=[A-Z“`×±\[])", self.note)


@dataclass(frozen=True)
class Look:
    """How a series is drawn: `colour` is a CSS variable of the page, `dash` a line style of matplotlib."""

    name: str
    colour: str
    dash: str
    marker: str
    symbol: str


@dataclass(frozen=True)
class Figure:
    """A plot, for the page and as files.

    Attributes:
        name: of its files, unique in the report; lower-case words joined by "-".
        svg: inline, in the page's colours; empty if there was nothing to draw; `caption` then says why.
        files: standalone, by suffix ("svg", "png", "pdf"); drawn when they are called.
        alt: says in words what the plot shows.
    """

    name: str
    title: str
    caption: str
    svg: str
    alt: str
    files: Mapping[str, Callable[[], bytes]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Figures:
    """Plots side by side that share a legend."""

    figures: tuple[Figure, ...]
    legend: tuple[Look, ...] = ()


@dataclass(frozen=True)
class Text:
    """A paragraph, and a list that belongs to it; `kind`: "body", "lead" (large), "note" (small) or "notice" (a warning)."""

    text: str
    items: tuple[str, ...] = ()
    kind: Literal["body", "lead", "note", "notice"] = "body"


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Picture:
    """An image, with what it shows in words, and lines below it."""

    pixels: UInt8[np.ndarray, "H W 3"] = field(compare=False)
    alt: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Swatch:
    """What a colour stands for in pictures: `colour` is #rrggbb."""

    name: str
    colour: str


@dataclass(frozen=True)
class Gallery:
    """Pictures of several images, each next to what belongs to it. The page shows one image at a time, if the reader likes.

    Attributes:
        name: of its files, unique in the report; lower-case words joined by "-".
        groups: names of neighbouring columns and how many each spans; columns of one name in several groups are of one kind,
            and can be shown by themselves.
        legend: colours that the pictures have in common.
        large: pictures are shown larger than usual.
    """

    name: str
    title: str
    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Picture, ...], ...]
    legend: tuple[Swatch, ...] = ()
    large: bool = False

    @property
    def group_of_columns(self) -> list[str]:
        """Empty where there is none."""
        return [name for name, span in self.groups for _ in range(span)] or [""] * len(self.columns)


Block = Text | Heading | Table | Figures | Gallery


@dataclass(frozen=True)
class Section:
    """A section of the page. `anchor` is its id; lower-case words joined by "-"."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


def section_of(anchor: str, title: str, *blocks: Block | None) -> Section:
    """A section of those blocks that there are: of tables, those with rows."""
    return Section(anchor, title, tuple(b for b in blocks if b is not None and not (isinstance(b, Table) and not b.rows)))
