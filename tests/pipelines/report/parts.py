"""Parts of a section, for tests."""

from pipelines.report.content import Figure, Figures, Gallery, Section, Table, Text


def tables(section: Section | None) -> dict[str, Table]:
    """By name; those of the paper left out."""
    assert section is not None
    return {block.name: block for block in section.blocks if isinstance(block, Table) and not block.published}


def figures(section: Section | None) -> list[Figure]:
    assert section is not None
    return [figure for block in section.blocks if isinstance(block, Figures) for figure in block.figures]


def words(section: Section | None, *kinds: str) -> list[str]:
    """Paragraphs of some kinds, or of all, each with its list; spaces may be parted by a line break."""
    assert section is not None
    texts = [block for block in section.blocks if isinstance(block, Text) and (not kinds or block.kind in kinds)]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for text in texts for line in (text.text, *text.items)]


def shown(table: Table, columns: slice = slice(None)) -> list[list[str]]:
    """The text of its cells, row by row."""
    return [[cell.text for cell in row.cells[columns]] for row in table.rows]


def best(table: Table, columns: slice = slice(None)) -> list[list[bool]]:
    """Which cells are bold."""
    return [[cell.best for cell in row.cells[columns]] for row in table.rows]


def gallery(section: Section | None) -> Gallery | None:
    """The only one; None without any."""
    assert section is not None
    found = [block for block in section.blocks if isinstance(block, Gallery)]
    assert len(found) < 2
    return found[0] if found else None
